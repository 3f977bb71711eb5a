//! The documents: a page with charts, figures and the report's text, and charts alone.
//!
//! Both are one file without references to others. Colours follow the reader's preference for light or dark.

use std::fmt::Write as _;

use crate::chart::{Chart, HEIGHT, WIDTH, escaped};

/// What the documents show.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The heading.
    pub title: String,
    /// The line below it.
    pub subtitle: String,
    /// What the reader must know first.
    pub warnings: Vec<String>,
    /// Figures with their names.
    pub facts: Vec<(String, String)>,
    /// In their order.
    pub charts: Vec<Chart>,
    /// The report as text.
    pub text: String,
}

/// Lines, marks and texts of charts.
const CHARTS: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#59636e;--grid:#d8dee4;--c0:#0969da;--c1:#1a7f37;--c2:#bc4c00;\
--c3:#8250df;--c4:#cf222e}
@media (prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--soft:#9da7b1;--grid:#30363d;--c0:#58a6ff;--c1:#3fb950;\
--c2:#f0883e;--c3:#bc8cff;--c4:#ff7b72}}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .title{font-weight:600;font-size:14px}svg .mark{fill:var(--soft);\
font-size:11px}
.grid{stroke:var(--grid);fill:none}.line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.knee{stroke:var(--c4);stroke-dasharray:4 3;fill:none}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}
";

/// The rest of the page.
const PAGE: &str = "\
body{margin:0 auto;max-width:1100px;padding:16px;background:var(--paper);color:var(--ink);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.3rem;margin:.2em 0;overflow-wrap:anywhere}p{margin:.3em 0;color:var(--soft);overflow-wrap:anywhere}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:16px 0;padding:0}
.facts div{border:1px solid var(--grid);border-radius:8px;padding:8px 12px}.facts dt{color:var(--soft);font-size:.8rem}
.facts dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
.charts svg{width:100%;height:auto;border:1px solid var(--grid);border-radius:8px}
.warning{border-left:4px solid var(--c2);padding-left:10px;color:var(--ink)}
pre{overflow-x:auto;border:1px solid var(--grid);border-radius:8px;padding:10px;font-size:12px;line-height:1.35}
";

/// Returns the page.
pub fn html(picture: &Picture) -> String {
    let title = escaped(&picture.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{CHARTS}{PAGE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{}</p>\n",
        escaped(&picture.subtitle)
    );
    for warning in &picture.warnings {
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", escaped(warning));
    }
    out.push_str("<dl class=\"facts\">\n");
    for (name, value) in &picture.facts {
        let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
    }
    out.push_str("</dl>\n<div class=\"charts\">\n");
    for chart in &picture.charts {
        out.push_str(&chart.svg(None));
    }
    let _ = write!(
        out,
        "</div>\n<details open>\n<summary>Report</summary>\n<pre>{}</pre>\n</details>\n</body>\n</html>\n",
        escaped(&picture.text)
    );
    out
}

/// Returns the charts below each other as a picture.
pub fn svg(picture: &Picture) -> String {
    let height = 28.0 + HEIGHT * picture.charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <style>\n{CHARTS}</style>\n<rect width=\"100%\" height=\"100%\" style=\"fill:var(--paper)\"/>\n\
         <text x=\"4\" y=\"17\">{}</text>\n",
        escaped(&picture.title)
    );
    for (number, chart) in picture.charts.iter().enumerate() {
        out.push_str(&chart.svg(Some(28.0 + HEIGHT * number as f64)));
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Line, Scale, Unit};

    #[test]
    fn documents_refer_to_nothing() {
        let chart = Chart {
            title: "t".to_owned(),
            x: Axis::new("x", Scale::Linear, Unit::Number),
            y: Axis::new("", Scale::Linear, Unit::Number),
            lines: vec![Line { name: "<script>".to_owned(), points: vec![(0.0, 1.0), (1.0, 2.0)] }],
            mark: None,
        };
        let picture = Picture {
            title: "a \"b\" <c>".to_owned(),
            facts: vec![("rate".to_owned(), "1/s".to_owned())],
            warnings: vec!["<b>".to_owned()],
            charts: vec![chart.clone(), chart],
            text: "x < y & z\x1b".to_owned(),
            ..Picture::default()
        };
        for text in [html(&picture), svg(&picture)] {
            // Names of namespaces are the only addresses.
            assert_eq!(text.matches("http").count(), text.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
            assert!(!text.contains("<script") && !text.contains("url(") && !text.contains('\x1b'), "{text}");
            assert!(text.contains("prefers-color-scheme:dark") && text.matches("<path class=\"line c0\"").count() == 4);
        }
        assert!(html(&picture).contains("<p class=\"warning\">&lt;b&gt;</p>"));
    }
}
