//! Every function of the sandbox, compared with redis-server: the same expressions must give the same text.

use super::support::{Judge, run, sandbox};

/// Evaluates each argument and returns the values, or the error, as text. Numbers are shown to their last bit.
const RUNNER: &str = r#"
local function text(value)
    local kind = type(value)
    if kind == 'number' then return string.format('%.17g', value) end
    if kind == 'string' then return '"' .. value .. '"' end
    if kind == 'nil' or kind == 'boolean' then return tostring(value) end
    return kind
end
local function show(...)
    local list = {}
    for i = 1, select('#', ...) do list[i] = text((select(i, ...))) end
    return table.concat(list, ' ')
end
local results = {}
for i = 1, #ARGV do
    local chunk = loadstring('return ' .. ARGV[i], '@user_script')
    local message
    if not chunk then chunk, message = loadstring(ARGV[i], '@user_script') end
    results[i] = chunk and show(pcall(chunk)) or show(chunk, message)
end
return results
"#;

/// The results of an expression on both sides.
struct Evaluated<'a> {
    expression: &'a [u8],
    theirs: Vec<u8>,
    ours: Vec<u8>,
}

impl std::fmt::Display for Evaluated<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, bytes) in [("", self.expression), ("redis: ", &self.theirs), ("ours:  ", &self.ours)] {
            writeln!(f, "{name}{}", bytes.escape_ascii())?;
        }
        Ok(())
    }
}

fn evaluate<'a>(expressions: &[&'a [u8]]) -> Vec<Evaluated<'a>> {
    let mut judge = Judge::start();
    let mut state = sandbox();
    let mut evaluated = Vec::new();
    for batch in expressions.chunks(500) {
        let theirs = judge.run(RUNNER.as_bytes(), batch).expect("the runner runs there");
        let ours = run(&mut state, RUNNER.as_bytes(), batch).expect("the runner runs here");
        assert_eq!((theirs.len(), ours.len()), (batch.len(), batch.len()));
        for ((expression, theirs), ours) in batch.iter().zip(theirs).zip(ours) {
            evaluated.push(Evaluated { expression, theirs, ours });
        }
    }
    evaluated
}

#[track_caller]
pub fn check(expressions: &[impl AsRef<[u8]>]) {
    let expressions: Vec<&[u8]> = expressions.iter().map(AsRef::as_ref).collect();
    let mut found = evaluate(&expressions);
    found.retain(|one| one.theirs != one.ours);
    let text = found.iter().fold(String::new(), |text, one| format!("{text}{one}\n"));
    assert!(found.is_empty(), "{} of {} differ:\n{text}", found.len(), expressions.len());
}

/// Lines of a corpus, without comments.
fn lines(corpus: &str) -> Vec<&str> {
    corpus.lines().filter(|line| !line.is_empty() && !line.starts_with("-- ")).collect()
}

#[test]
fn the_corpus_gives_the_same() {
    check(&lines(include_str!("corpus.lua")));
}

/// The differences that the reference lists for users.
#[test]
fn the_documented_differences_are_all_there() {
    let lines: Vec<(&str, &str)> = lines(include_str!("differences.lua"))
        .into_iter()
        .map(|line| line.split_once(" --> ").expect("an expression and what it gives here"))
        .collect();
    let expressions: Vec<&[u8]> = lines.iter().map(|(expression, _)| expression.as_bytes()).collect();
    for (one, (_, expected)) in evaluate(&expressions).iter().zip(lines) {
        assert_eq!(String::from_utf8_lossy(&one.ours), expected, "{one}");
        assert_ne!(one.theirs, one.ours, "no difference any more: {one}");
    }
}
