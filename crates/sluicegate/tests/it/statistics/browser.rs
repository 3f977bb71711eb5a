//! The page in Chromium: it fits a phone and a desk, light and dark, and an action is clicked through.

use sluicegate_testkit::{Client, Listening, Sluicegate, free_port};

use super::webdriver::Browser;
use crate::start;

fn server(gate: &Listening, lines: &str) -> Sluicegate {
    let port = free_port();
    let server = start(
        &format!(
            "global\n stats socket @DIR@/stats level admin\n node \"<script>document.title='x'</script>\"\n\
             store main\n bind 127.0.0.1:{}\n user default on nopass ~a* +@all\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\n\
             listen web\n bind {}\n stats uri /s?a=b\n stats admin if TRUE\n stats show-node\n stats show-legends\n\
             {lines} server one 127.0.0.1:1 cookie \"\\\"><img src=x onerror=alert(1)>\"\n \
             server two 127.0.0.1:1 disabled\n server three-with-a-rather-long-name-that-goes-on 127.0.0.1:1 backup\n\
             backend other\n server s 127.0.0.1:1\n",
            port,
            gate.word()
        ),
        &[gate],
    );
    // What a client was denied is shown, whatever it asked for.
    let mut client = Client::connect(&format!("127.0.0.1:{port}"));
    for key in ["<img src=x onerror=alert(2)>", &"k".repeat(1000), "some:ordinary:key"] {
        assert!(client.ask(&["GET", key]).starts_with("-NOPERM"));
    }
    server
}

#[test]
fn the_page_fits_screens_and_schemes() {
    let gate = Listening::new();
    let _server = server(&gate, " stats show-modules\n");
    let browser = Browser::start();
    let url = format!("http://{}/s?a=b", gate.address());
    let mut backgrounds = Vec::new();
    for (width, phone) in [(360, true), (390, true), (768, true), (1000, false), (1400, false), (1440, false)] {
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
                "return [...document.querySelectorAll('td,th,a,button,small,li,dd')].filter(e => \
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
            // Between a phone and a desk wide tables scroll by themselves, with a keyboard too.
            assert_eq!(scrolls, (width == 1000).to_string(), "{what}: a table is wider than the screen");
            let clipped = browser.run(
                "return [...document.querySelectorAll('main :is(h2,th,td,small,label,b,dd)')].filter(e => \
                 e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline').length",
            );
            assert_eq!(clipped, "0", "{what}: no text is clipped");
            let as_cards = browser.run(
                "return getComputedStyle(document.querySelector('.px tbody tr')).display === 'grid' && \
                 getComputedStyle(document.querySelector('.px td:nth-child(3)'), '::before').content",
            );
            let label = if width <= 768 { "\"\\\"Sessions: Now\\\"\"" } else { "false" };
            assert_eq!(as_cards, label, "{what}: rows are cards on a narrow screen alone");
            if width > 768 {
                assert_eq!(browser.run(ALIGNED), "[]", "{what}: headings end where their numbers end");
            }
            assert!(browser.picture().len() > 1000);
        }
    }
    // Busy servers fit a desk, too.
    browser.resize(1440, false);
    browser.open(&url);
    let scroll = browser.run(
        "const set = (at, text) => document.querySelectorAll(`.px .sv td:nth-child(${at})`).forEach(e => \
         e.textContent = text); \
         for (const [at, text] of [[3, '1 234'], [4, '12 345'], [5, '65 536'], [6, '9 999 999'], [7, '12m34s'], \
         [8, '1 234'], [9, '12 345'], [14, '123 GB'], [15, '999 GB'], [18, '1 234'], [19, '1 234'], [20, '1 234'], \
         [21, '1 234'], [23, '256'], [28, '12d12h'], [29, '100 %']]) set(at, text); \
         return Math.max(...[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth))",
    );
    assert_eq!(scroll, "0");
    assert_ne!(backgrounds[0], backgrounds[1], "dark is another background");
    let title = "return document.title.includes(\"<script>document.title='x'</script>\")";
    assert_eq!(browser.run(title), "true", "a name is text");
    assert_eq!(browser.run("return document.images.length + document.scripts.length"), "1");
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), "0", "nothing else is loaded");
    assert_eq!(browser.console(), "{\"value\":[]}");
}

#[test]
fn states_are_told_by_colour_and_by_word() {
    let gate = Listening::new();
    let _server = server(&gate, "");
    let browser = Browser::start();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.open(&format!("http://{}/s?a=b", gate.address()));
        let different = browser.run(
            "const c = [...document.querySelectorAll('.legend li')].map(e => getComputedStyle(e).backgroundColor); \
             return [c.length, new Set(c).size]",
        );
        assert_eq!(different, "[11,11]", "{scheme}: every colour of the legend is another");
        // A row has the colour of its state in all cells, the same as in the legend.
        let rows = browser.run(
            "const colour = e => getComputedStyle(e).backgroundColor; \
             const known = n => colour(document.querySelector(`.legend .${n}`)); \
             return [...document.querySelectorAll('#web .sv')].map(r => [r.className, \
             [...r.children].every(e => colour(e) === known(r.classList[r.classList.length - 1]))])",
        );
        let edges = browser
            .run("return [...document.querySelectorAll('#web .sv th')].map(e => getComputedStyle(e).borderLeftStyle)");
        assert_eq!(edges, "[\"none\",\"none\",\"double\"]", "{scheme}: a backup has an edge of its own");
        assert_eq!(rows, "[[\"sv none\",true],[\"sv maint\",true],[\"sv bk none\",true]]", "{scheme}");
    }
    let order = browser.run("return [...document.querySelectorAll('.legend, main > *')].map(e => e.id || e.className)");
    assert_eq!(
        order, "[\"legend\",\"web\",\"other\",\"~st\",\"~dn\",\"~gl\"]",
        "the proxies stand before all other tables"
    );
    let titles = browser.run("return [...document.querySelectorAll('[title]')].filter(e => !e.title.trim()).length");
    assert_eq!(titles, "0", "no empty titles");
    // Every heading is explained where a phone shows it, too.
    let explained = browser.run(
        "const words = [...document.querySelectorAll('.gl dt')].map(e => e.textContent); \
         return [...document.querySelectorAll('#web thead tr+tr th, .st thead th')].filter(h => \
         !words.some(w => w === h.textContent || w.endsWith(': ' + h.textContent))).map(h => h.textContent)",
    );
    assert_eq!(explained, "[]");
    browser.click("[id='~st'] summary");
    browser.expect("return document.querySelector('.st').checkVisibility()", "false");
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
    browser.expect("return document.querySelector('#web .sv.drain')?.textContent.includes('DRAIN') ?? false", "true");
    // All servers at once; a reload would not post again.
    browser.click("#web input.all");
    browser.click("#web option[value=ready]");
    browser.click("#web button");
    browser.expect("return document.querySelectorAll('#web .sv.none').length", "3");
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

/// A script that returns the headings of figures that do not end, to the right, where the cells below them end.
const ALIGNED: &str = "
const end = e => { const r = document.createRange(); r.selectNodeContents(e); return r.getBoundingClientRect().right; };
return [...document.querySelectorAll('.px')].flatMap(t => [...t.querySelectorAll('thead tr+tr th')].filter((h, i) =>
  [...t.querySelectorAll(`tbody td:nth-child(${i + 3})`)].some(c => c.textContent && Math.abs(end(c) - end(h)) > 1))
  .map(h => h.textContent));";

/// Gives the texts whose colour is too near to that behind them.
pub(super) const CONTRASTS: &str = "
const rgb = c => c.match(/[0-9.]+/g).map(Number);
const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255;
  return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (rgb(c).length < 4 || rgb(c)[3] > 0) return c; } return 'rgb(255,255,255)'; };
return [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 &&
  n.textContent.trim()) && !['SCRIPT', 'STYLE', 'OPTION', 'SELECT', 'BUTTON'].includes(e.tagName)).filter(e => {
  const a = light(getComputedStyle(e).color), b = light(behind(e));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5; }).map(e => e.outerHTML.slice(0, 80));";
