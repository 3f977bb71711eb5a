//! The page in Chromium: it fits a phone and a desk, light and dark, and an action is clicked through.

use sluicegate_testkit::{Client, Listening, Sluicegate};

use super::webdriver::Browser;
use crate::start;

fn server(gate: &Listening, lines: &str) -> Sluicegate {
    start(
        &format!(
            "global\n stats socket @DIR@/stats level admin\n node \"<script>document.title='x'</script>\"\n\
             store main\ndefaults\n mode http\n timeout client 20s\n timeout server 20s\n timeout connect 1s\n\
             listen web\n bind {}\n stats uri /s?a=b\n stats admin if TRUE\n stats show-node\n stats show-legends\n\
             {lines} server one 127.0.0.1:1 cookie \"\\\"><img src=x onerror=alert(1)>\"\n \
             server two 127.0.0.1:1 disabled\n server three-with-a-rather-long-name-that-goes-on 127.0.0.1:1 backup\n\
             backend other\n server s 127.0.0.1:1\n",
            gate.word()
        ),
        &[gate],
    )
}

#[test]
fn the_page_fits_screens_and_schemes() {
    let gate = Listening::new();
    let _server = server(&gate, " stats show-modules\n");
    let browser = Browser::start();
    let url = format!("http://{}/s?a=b", gate.address());
    let mut backgrounds = Vec::new();
    for (width, phone) in [(360, true), (768, true), (1400, false)] {
        for scheme in ["light", "dark"] {
            browser.resize(width, phone);
            browser.prefer(scheme);
            browser.open(&url);
            let what = format!("{width} {scheme}");
            let size = browser.run("return [document.documentElement.scrollWidth, innerWidth, visualViewport.scale]");
            assert_eq!(size, format!("[{width},{width},1]"), "{what}: the page is as wide as the screen");
            // Every text can be told from what is behind it (WCAG 2.1, 1.4.3).
            let contrasts = browser.run(CONTRASTS);
            assert_eq!(contrasts, "[]", "{what}");
            let small = browser.run(
                "return [...document.querySelectorAll('td,th,a,button')].filter(e => \
                 parseFloat(getComputedStyle(e).fontSize) < 11).length",
            );
            assert_eq!(small, "0", "{what}: nothing is too small to read");
            backgrounds.push(browser.run("return getComputedStyle(document.body).backgroundColor"));
            let names = browser.run(
                "return [...document.querySelectorAll('tbody tr')].every(r => r.querySelector('th[scope=row]')) && \
                 [...document.querySelectorAll('input:not([type=hidden]),select')].every(e => \
                 e.labels.length || e.ariaLabel)",
            );
            assert_eq!(names, "true", "{what}: lines and fields have names");
            let scrolls = browser.run(
                "const s = [...document.querySelectorAll('.scroll')]; \
                 return s.every(e => e.tabIndex === 0 && e.ariaLabel) && s.some(e => e.scrollWidth > e.clientWidth)",
            );
            assert_eq!(scrolls, "true", "{what}: wide tables scroll by themselves, with a keyboard too");
            assert!(browser.picture().len() > 1000);
        }
    }
    assert_ne!(backgrounds[0], backgrounds[1], "dark is another background");
    let title = "return document.title.includes(\"<script>document.title='x'</script>\")";
    assert_eq!(browser.run(title), "true", "a name is text");
    assert_eq!(browser.run("return document.images.length + document.scripts.length"), "1");
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), "0", "nothing else is loaded");
    assert_eq!(browser.console(), "{\"value\":[]}");
}

#[test]
fn an_action_is_clicked_through() {
    let gate = Listening::new();
    let server = server(&gate, "");
    let browser = Browser::start();
    browser.open(&format!("http://{}/s?a=b", gate.address()));
    let states = || -> Vec<String> {
        let text = Sluicegate::stats(&server.directory().join("stats"), "show stat web 4 -1");
        text.lines().filter(|line| line.starts_with("web,")).map(|l| l.split(',').nth(17).unwrap().to_owned()).collect()
    };
    assert_eq!(states(), ["no check", "MAINT", "no check"]);
    browser.click("#web input[value=one]");
    browser.click("#web option[value=drain]");
    browser.click("#web button");
    browser.expect("return location.pathname + location.search", "\"/s?a=b;st=DONE\"");
    assert_eq!(states(), ["DRAIN", "MAINT", "no check"]);
    browser.expect("return document.querySelector('[role=status]')?.textContent ?? ''", "\"Done. Close\"");
    browser.expect("return document.querySelector('#web .b.drain')?.textContent.includes('DRAIN') ?? false", "true");
    // All servers at once; a reload would not post again.
    browser.click("#web input.all");
    browser.click("#web option[value=ready]");
    browser.click("#web button");
    browser.expect("return document.querySelectorAll('#web .b.none').length", "3");
    assert_eq!(states(), ["no check", "no check", "no check"]);
    browser.click("[role=status] a");
    browser.expect("return location.search + document.querySelectorAll('[role=status]').length", "\"?a=b0\"");
    // The search leads to this page again, whatever its address is.
    browser.run("document.querySelector('[name=scope]').value = 'oth'; return 1");
    browser.click("nav button");
    browser.expect(
        "return location.search + ' ' + [...document.querySelectorAll('main section')].map(s => s.id)",
        "\"?a=b&scope=oth other\"",
    );
    assert_eq!(browser.console(), "{\"value\":[]}");
    assert_eq!(Client::connect(&gate.address()).get("/s?a=b;csv").status, 200);
}

/// Gives the texts whose colour is too near to that behind them.
const CONTRASTS: &str = "
const rgb = c => c.match(/[0-9.]+/g).map(Number);
const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255;
  return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (rgb(c).length < 4 || rgb(c)[3] > 0) return c; } return 'rgb(255,255,255)'; };
return [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 &&
  n.textContent.trim()) && !['SCRIPT', 'STYLE', 'OPTION', 'SELECT', 'BUTTON'].includes(e.tagName)).filter(e => {
  const a = light(getComputedStyle(e).color), b = light(behind(e));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5; }).map(e => e.outerHTML.slice(0, 80));";
