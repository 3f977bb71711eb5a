//! The series of tests of redis-benchmark.

use super::arguments::Options;

/// A command with its title. `{}` stands for the hash tag of a cluster, `__data__` for the value.
pub(super) struct Test {
    pub(super) title: String,
    pub(super) words: Vec<Vec<u8>>,
    pub(super) is_inline: bool,
    /// What `__data__` stands for.
    pub(super) payload: usize,
}

/// The names by which a test is chosen, its title, and its words with blanks between them. `__score__` is the score of a
/// member: 0, or a random one.
type Row = (&'static [&'static str], &'static str, &'static str);

const TESTS: &[Row] = &[
    (&["ping", "ping_inline"], "PING_INLINE", "PING"),
    (&["ping", "ping_mbulk"], "PING_MBULK", "PING"),
    (&["set"], "SET", "SET key{}:__rand_int__ __data__"),
    (&["get"], "GET", "GET key{}:__rand_int__"),
    (&["incr"], "INCR", "INCR counter{}:__rand_int__"),
    (&["lpush"], "LPUSH", "LPUSH mylist{} __data__"),
    (&["rpush"], "RPUSH", "RPUSH mylist{} __data__"),
    (&["lpop"], "LPOP", "LPOP mylist{}"),
    (&["rpop"], "RPOP", "RPOP mylist{}"),
    (&["sadd"], "SADD", "SADD myset{} element:__rand_int__"),
    (&["hset"], "HSET", "HSET myhash{} element:__rand_int__ __data__"),
    (&["spop"], "SPOP", "SPOP myset{}"),
    (&["zadd"], "ZADD", "ZADD myzset{} __score__ element:__rand_int__"),
    (&["zpopmin"], "ZPOPMIN", "ZPOPMIN myzset{}"),
    (LRANGES, "LPUSH (needed to benchmark LRANGE)", "LPUSH mylist{} __data__"),
    (&["lrange", "lrange_100"], "LRANGE_100 (first 100 elements)", "LRANGE mylist{} 0 99"),
    (&["lrange", "lrange_300"], "LRANGE_300 (first 300 elements)", "LRANGE mylist{} 0 299"),
    (&["lrange", "lrange_500"], "LRANGE_500 (first 500 elements)", "LRANGE mylist{} 0 499"),
    (&["lrange", "lrange_600"], "LRANGE_600 (first 600 elements)", "LRANGE mylist{} 0 599"),
    (&["mset"], "MSET (10 keys)", "MSET"),
    (&["xadd"], "XADD", "XADD mystream{} * myfield __data__"),
];

const LRANGES: &[&str] = &["lrange", "lrange_100", "lrange_300", "lrange_500", "lrange_600"];

/// Returns the names of all tests.
pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for name in TESTS.iter().flat_map(|(names, ..)| *names) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    names
}

/// Returns whether a test has this name.
pub(super) fn is_name(name: &str) -> bool {
    TESTS.iter().any(|(names, ..)| names.iter().any(|known| known.eq_ignore_ascii_case(name)))
}

/// Returns the tests to run: the command of the options, or the chosen tests of the series.
pub(super) fn of(options: &Options) -> Vec<Test> {
    if !options.command.is_empty() {
        let words = options.command.clone();
        let digits = |number: usize| number.to_string().len();
        let of_words = |word: &Vec<u8>| 1 + digits(word.len()) + 2 + word.len() + 2;
        let payload = 1 + digits(words.len()) + 2 + words.iter().map(of_words).sum::<usize>();
        return vec![Test { title: options.title.clone(), words, is_inline: false, payload }];
    }
    let is_chosen = |names: &[&str]| match &options.tests {
        // Redis 7.2 added it to the series; 7.0 lacks it.
        None => names != ["xadd"],
        Some(chosen) => names.iter().any(|name| chosen.iter().any(|other| other == name)),
    };
    let test = |(names, title, words): &Row| {
        let tag = if options.cluster { ":{tag}" } else { "" };
        let score = if options.keys.is_some() { "__rand_int__" } else { "0" };
        let mut text = (*words).to_owned();
        if *title == "MSET (10 keys)" {
            text.push_str(&" key{}:__rand_int__ __data__".repeat(10));
        }
        let text = text.replace("{}", tag).replace("__score__", score);
        Test {
            title: (*title).to_owned(),
            words: text.split(' ').map(|word| word.as_bytes().to_vec()).collect(),
            is_inline: names.contains(&"ping_inline"),
            payload: options.data_size,
        }
    };
    TESTS.iter().filter(|(names, ..)| is_chosen(names)).map(test).collect()
}
