//! The plan of the book: its parts, the time that each has, and the programs that each needs.
//!
//! A part begins no further round after most of its time, and is ended after all of it. Time that parts leave goes to
//! those after them, at most as much again as their own, and in the end to the extra parts, which run only if there is
//! enough. So the sum of the limits of the others is the time of the whole.

/// The time of the whole in seconds, without the build of the program.
pub(super) const BUDGET_S: u32 = 39 * 60;
pub(super) const QUICK_BUDGET_S: u32 = 355;

/// How a part is measured in a kind of run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) runs: u32,
    /// The part's time, in seconds.
    pub(super) limit_s: u32,
    /// More words of the command.
    pub(super) words: &'static str,
}

/// A part of the book.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The report, as `bench` calls it, and its part.
    pub(super) report: &'static str,
    pub(super) part: &'static str,
    /// Whether it runs only if time is left.
    pub(super) is_extra: bool,
    pub(super) full: Manner,
    /// [`None`]: a quick run has it not.
    pub(super) quick: Option<Manner>,
    pub(super) needs: &'static [&'static str],
}

impl Step {
    /// Returns the name of its files.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.report, self.part.trim_start_matches('-'))
    }

    /// Returns the words after `bench` that measure it, without program and file.
    pub(super) fn words(&self, manner: &Manner) -> Vec<String> {
        let mut words: Vec<String> = [self.report, self.part].map(str::to_owned).into();
        words.extend(manner.words.split_whitespace().map(str::to_owned));
        if self.part == PEERS_OF_GUARD {
            return words;
        }
        words.extend(["--runs".to_owned(), manner.runs.to_string()]);
        words
    }

    pub(super) fn manner(&self, is_quick: bool) -> Option<&Manner> {
        if is_quick { self.quick.as_ref() } else { Some(&self.full) }
    }
}

/// The part of `guard` that counts instructions; it has no runs.
const PEERS_OF_GUARD: &str = "--peers";

const HAPROXY: &str = "haproxy";
const NEWER: &str = "haproxy-2.8";
const REDIS: &str = "redis-server";
const VALKEY: &str = "valkey-server-8.1";

const PROXY: &[&str] = &[HAPROXY];
const STORE: &[&str] = &[REDIS];
const BOTH_STORES: &[&str] = &[REDIS, VALKEY];
const TLS: &[&str] = &[NEWER];
const WRK: &[&str] = &[HAPROXY, REDIS, "wrk"];

const fn manner(runs: u32, limit_s: u32, words: &'static str) -> Manner {
    Manner { runs, limit_s, words }
}

const fn step(report: &'static str, part: &'static str, full: Manner, needs: &'static [&'static str]) -> Step {
    Step { report, part, is_extra: false, full, quick: None, needs }
}

const fn both(
    report: &'static str,
    part: &'static str,
    full: Manner,
    quick: Manner,
    needs: &'static [&'static str],
) -> Step {
    Step { report, part, is_extra: false, full, quick: Some(quick), needs }
}

const fn extra(report: &'static str, part: &'static str, full: Manner, needs: &'static [&'static str]) -> Step {
    Step { report, part, is_extra: true, full, quick: None, needs }
}

/// In the order of the book.
pub(super) const STEPS: &[Step] = &[
    both("posts", "accounting", manner(2, 105, ""), manner(1, 30, "--seconds 1"), WRK),
    both("posts", "scripts", manner(2, 115, ""), manner(1, 24, "--seconds 1"), BOTH_STORES),
    both("posts", "reconnection", manner(3, 50, ""), manner(1, 10, "--keys 10000"), BOTH_STORES),
    both("posts", "connections", manner(1, 85, ""), manner(1, 32, "--seconds 9"), PROXY),
    both("growth", "connections", manner(2, 80, ""), manner(1, 36, "--seconds 1"), PROXY),
    both("growth", "keys", manner(3, 70, ""), manner(1, 18, "--keys 1000000 --seconds 1"), STORE),
    both("growth", "rules", manner(2, 55, ""), manner(1, 20, "--seconds 1"), PROXY),
    both("growth", "acl", manner(2, 65, ""), manner(1, 28, "--seconds 1"), PROXY),
    both("growth", "workers", manner(3, 45, ""), manner(1, 15, "--seconds 1"), PROXY),
    both("growth", "scripts", manner(3, 40, ""), manner(1, 12, "--seconds 1"), BOTH_STORES),
    both("proxy", "cpu", manner(3, 50, ""), manner(1, 13, "--seconds 1"), PROXY),
    both("proxy", "large", manner(2, 30, ""), manner(1, 10, "--seconds 1"), PROXY),
    step("proxy", "cached", manner(2, 35, ""), PROXY),
    step("proxy", "spoe", manner(3, 30, ""), TLS),
    step("proxy", "tail", manner(2, 32, ""), PROXY),
    step("proxy", "idle", manner(1, 45, "--seconds 2"), PROXY),
    step("proxy", "tables", manner(1, 60, "--seconds 2"), PROXY),
    step("proxy", "servers", manner(2, 36, ""), PROXY),
    step("proxy", "check", manner(3, 15, ""), PROXY),
    step("proxy", "reloads", manner(1, 52, ""), PROXY),
    both("store", "cpu", manner(3, 40, ""), manner(1, 20, ""), STORE),
    step("store", "types", manner(2, 28, ""), STORE),
    step("store", "transactions", manner(3, 20, ""), STORE),
    step("store", "workers", manner(2, 34, ""), &[]),
    step("store", "hot", manner(3, 16, ""), &[]),
    step("store", "memory", manner(1, 45, ""), STORE),
    step("store", "eviction", manner(1, 40, ""), STORE),
    both("scripts", "costs", manner(3, 34, ""), manner(1, 16, ""), STORE),
    step("scripts", "workers", manner(2, 20, ""), &[]),
    step("scripts", "others", manner(1, 50, ""), &[]),
    step("scripts", "memory", manner(1, 20, ""), &[]),
    step("scripts", "bullmq", manner(1, 35, ""), &[REDIS, "node"]),
    step("durable", "save", manner(1, 40, "--keys 1000000"), STORE),
    step("durable", "list", manner(1, 18, "--keys 1000000"), STORE),
    step("durable", "speed", manner(2, 18, "--keys 1000000"), BOTH_STORES),
    step("durable", "eviction", manner(1, 14, "--keys 1000000"), STORE),
    step("durable", "append", manner(2, 16, "--keys 1000000"), STORE),
    step("durable", "always", manner(1, 24, "--keys 1000000"), STORE),
    step("durable", "rewrite", manner(1, 40, "--keys 1000000"), STORE),
    step("durable", "groups", manner(2, 14, "--keys 1000000"), STORE),
    step("replicas", "sync", manner(1, 40, "--keys 100000"), BOTH_STORES),
    step("replicas", "cost", manner(1, 16, "--keys 100000"), BOTH_STORES),
    step("replicas", "apply", manner(1, 16, "--keys 100000"), BOTH_STORES),
    step("replicas", "tracking", manner(1, 10, "--keys 100000"), BOTH_STORES),
    step("replicas", "users", manner(1, 16, "--keys 100000"), BOTH_STORES),
    both("tls", "handshakes", manner(1, 42, "--seconds 2"), manner(1, 26, "--seconds 1"), TLS),
    step("tls", "bulk", manner(2, 34, ""), TLS),
    both("h2", "rules", manner(2, 26, "--seconds 2"), manner(1, 12, "--seconds 1"), TLS),
    step("h2", "proxied", manner(2, 26, "--seconds 2"), TLS),
    step("h2", "large", manner(1, 16, "--seconds 2"), TLS),
    step("engines", "calls", manner(1, 58, ""), WRK),
    step("engines", "reconnection", manner(1, 20, ""), &[REDIS, "redis-benchmark"]),
    step("logs", "lines", manner(1, 48, "--seconds 2"), WRK),
    both("http-self", "http", manner(3, 24, ""), manner(1, 6, "--seconds 1"), &["wrk"]),
    both("http-self", "resp", manner(2, 34, ""), manner(1, 10, "--seconds 1"), &[REDIS, "redis-benchmark"]),
    both("http-self", "keys", manner(2, 34, ""), manner(1, 10, "--seconds 1"), &[REDIS, "redis-benchmark"]),
    both("http-self", "lag", manner(3, 14, ""), manner(1, 6, "--seconds 1"), &[]),
    step("http-self", "crowd", manner(1, 15, ""), &[]),
    extra("proxy", "peers", manner(1, 60, "--keys 50000"), TLS),
    extra("tls", "idle", manner(1, 70, ""), TLS),
    extra("tls", "certificates", manner(1, 90, ""), TLS),
    extra("h2", "idle", manner(1, 70, ""), TLS),
    extra("store", "delays", manner(1, 90, ""), STORE),
    extra("guard", PEERS_OF_GUARD, manner(1, 240, ""), &["valgrind", HAPROXY, NEWER, REDIS, VALKEY]),
    extra("attacks", "floods", manner(1, 200, "--seconds 2"), TLS),
    extra("attacks", "halves", manner(1, 80, ""), TLS),
    extra("store", "reuse", manner(1, 150, ""), STORE),
];

/// Measurements that are not part of the book, and why.
pub(super) const LEFT_OUT: &[(&str, &str)] = &[
    ("bench store call stalls", "their programs are other builds with the store in them"),
    ("bench guard", "counts the plain build against the parent commit"),
    ("bench compare", "compares two builds"),
];

/// Returns the steps of a kind of run, first those that always run, then the extra ones.
pub(super) fn steps(is_quick: bool, only: &[String]) -> Vec<(&'static Step, &'static Manner)> {
    let wanted = |step: &&Step| only.is_empty() || only.contains(&step.name()) || only.iter().any(|o| o == step.report);
    let mut steps: Vec<_> =
        STEPS.iter().filter(wanted).filter_map(|step| Some((step, step.manner(is_quick)?))).collect();
    steps.sort_by_key(|(step, _)| step.is_extra);
    steps
}

/// Returns the time that a step has: its own, and of what is left as much again. `left_s` is the time of the whole that
/// has not passed; `later` are the steps after it. An extra step for which too little is left has none.
pub(super) fn allowed_s(step: &Step, limit_s: u32, left_s: u32, later: &[(&Step, &Manner)]) -> Option<u32> {
    let theirs: u32 = later.iter().filter(|(step, _)| !step.is_extra).map(|(_, manner)| manner.limit_s).sum();
    let own = left_s.saturating_sub(theirs);
    if step.is_extra && own < limit_s { None } else { Some(own.min(2 * limit_s).max(1)) }
}

/// Returns the plan in words.
pub(super) fn text(steps: &[(&Step, &Manner)], budget_s: u32) -> String {
    let mut text = String::new();
    for (step, manner) in steps {
        let when = if step.is_extra { ", if so much is left" } else { "" };
        let runs = if manner.runs == 1 { "1 run" } else { &format!("{} runs", manner.runs) };
        text += &format!("{:>5} s  {}, {runs}{when}\n", manner.limit_s, step.words(manner)[..2].join(" "));
    }
    let sum: u32 = steps.iter().filter(|(step, _)| !step.is_extra).map(|(_, manner)| manner.limit_s).sum();
    text + &format!(
        "{sum:>5} s at most, without the extra parts; {budget_s} s with them; the build of the program is not in it\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_add_up_to_less_than_the_budgets() {
        for (is_quick, budget_s, most_s) in [(false, BUDGET_S, 40 * 60), (true, QUICK_BUDGET_S, 6 * 60)] {
            let steps = steps(is_quick, &[]);
            let sum: u32 = steps.iter().filter(|(step, _)| !step.is_extra).map(|(_, manner)| manner.limit_s).sum();
            assert!(sum <= budget_s && budget_s < most_s, "{sum} s of {budget_s}");
            assert!(text(&steps, budget_s).contains(&format!("{sum} s at most")));
        }
    }

    #[test]
    fn every_part_of_the_plan_exists_once() {
        let mut names: Vec<String> = STEPS.iter().map(Step::name).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for step in STEPS {
            let has = |known: &&&crate::report::Report| {
                known.name == step.report && known.parts.iter().any(|part| part.0 == step.part)
            };
            assert!(step.part == PEERS_OF_GUARD || crate::book::REPORTS.iter().find(has).is_some(), "{}", step.name());
        }
    }

    #[test]
    fn every_table_of_the_posts_and_every_curve_is_in_a_quick_run() {
        let quick: Vec<String> = steps(true, &[]).iter().map(|(step, _)| step.name()).collect();
        for step in STEPS.iter().filter(|step| ["posts", "growth"].contains(&step.report)) {
            assert!(quick.contains(&step.name()), "{}", step.name());
        }
    }

    #[test]
    fn time_that_is_left_goes_to_those_after_it_and_never_more() {
        let steps = steps(false, &[]);
        // Every step takes all that it may: the whole ends in time.
        let (mut left_s, mut ran) = (BUDGET_S, 0);
        for (index, (step, manner)) in steps.iter().enumerate() {
            let Some(allowed_s) = allowed_s(step, manner.limit_s, left_s, &steps[index + 1..]) else { continue };
            assert!(allowed_s <= left_s && allowed_s >= manner.limit_s, "{}", step.name());
            left_s -= allowed_s;
            ran += 1;
        }
        assert!(ran >= steps.iter().filter(|(step, _)| !step.is_extra).count());
        let (step, manner) = steps[steps.len() - 1];
        assert!(step.is_extra);
        assert_eq!(allowed_s(step, manner.limit_s, manner.limit_s - 1, &[]), None);
        assert_eq!(allowed_s(step, manner.limit_s, BUDGET_S, &[]), Some(2 * manner.limit_s));
    }

    #[test]
    fn commands_name_their_parts() {
        let words = |name: &str| {
            let step = STEPS.iter().find(|step| step.name() == name).unwrap();
            step.words(&step.full).join(" ")
        };
        assert_eq!(words("growth-keys"), "growth keys --runs 3");
        assert_eq!(words("durable-save"), "durable save --keys 1000000 --runs 1");
        assert_eq!(words("guard-peers"), "guard --peers");
    }
}
