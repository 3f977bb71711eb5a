//! Thousands of random expressions, from the same seed on every run.

use std::fmt::Write as _;

use super::differential::check;

/// A small generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Up to `most` of these, together.
    fn some(&mut self, of: &[&str], most: usize) -> String {
        (0..self.below(most + 1)).map(|_| self.one(of)).collect()
    }
}

/// A string of Lua's source.
fn quoted(text: &str) -> String {
    let mut source = String::from("\"");
    for byte in text.bytes() {
        let _ = write!(source, "\\{byte:03}");
    }
    source + "\""
}

const SUBJECTS: &[&str] =
    &["a", "b", "ab", "abc", "(", ")", "((", " ", "1", "23", "x=1", ",", "\0", "%", "^", "$", ".", "-", "A", "_", "]"];

const ITEMS: &[&str] = &[
    "a", "b", "c", ".", "%a", "%d", "%s", "%w", "%x", "%p", "%z", "%u", "%l", "%c", "%A", "%D", "%W", "%S", "[ab]",
    "[^a]", "[a-c]", "[%w_]", "[^%s]", "[]]", "[a-]", "[c-a]", "[%a-z]", "%b()", "%bab", "%f[%w]", "%f[%W]", "%1",
    "%2", "(", ")", "()", "(a)", "(.-)", "(%w+)", "^", "$", "*", "+", "-", "?", ".*", ".-", "a*", "a-", "a+", "b?",
    "%.", "%%", "%g",
];

/// What makes a pattern malformed, now and then.
const WRONG: &[&str] = &["%", "[", "[^", "[a", "%b", "%bx", "%f", "%fa", "%0", "%9", "\0", "[%", "[%a", "(()"];

fn pattern(random: &mut Random) -> String {
    let mut pattern = String::new();
    if random.below(6) == 0 {
        pattern.push('^');
    }
    pattern += &random.some(ITEMS, 5);
    if random.below(12) == 0 {
        pattern += random.one(WRONG);
        pattern += &random.some(ITEMS, 2);
    }
    if random.below(6) == 0 {
        pattern.push('$');
    }
    pattern
}

#[test]
fn patterns_find_the_same() {
    let mut random = Random(1);
    let expressions: Vec<String> = (0..6000)
        .map(|round| {
            let subject = quoted(&random.some(SUBJECTS, 8));
            let pattern = quoted(&pattern(&mut random));
            match round % 5 {
                0 => {
                    let start = random.one(&["", ",1", ",2", ",-2", ",-100", ",100", ",0", ",'3'", ",2.7", ",nil"]);
                    format!("string.find({subject},{pattern}{start})")
                }
                1 => format!("string.match({subject},{pattern},{})", random.one(&["1", "2", "-1", "9"])),
                2 => format!(
                    "(function() local r = {{}} for a, b, c in string.gmatch({subject},{pattern}) do \
                     r[#r + 1] = tostring(a) .. '/' .. tostring(b) .. '/' .. tostring(c) end return table.concat(r, ' ') end)()"
                ),
                3 => {
                    let with = random.one(&[
                        "'x'", "''", "'<%0>'", "'%1'", "'%2%1'", "'%%'", "'%'", "'%a'", "5", "2.5", "{a='1',b=2,ab=false}",
                        "{[1]='one',a=true}", "setmetatable({}, {__index = function(t, k) return k .. '!' end})",
                        "setmetatable({a = 'A'}, {__index = {b = 'B'}})", "setmetatable({}, {})",
                    ]);
                    let most = random.one(&["", "", ",1", ",2", ",0", ",-1", ",1.9", ",nil"]);
                    format!("string.gsub({subject},{pattern},{with}{most})")
                }
                _ => format!(
                    "string.gsub({subject},{pattern},function(...) local n = select('#', ...) \
                     if n == 2 then return false end return n .. tostring((...)) end)"
                ),
            }
        })
        .collect();
    check(&expressions);
}

#[test]
fn formats_print_the_same() {
    let mut random = Random(2);
    let expressions: Vec<String> = (0..4000)
        .map(|_| {
            let mut format = String::new();
            let mut arguments = String::new();
            for _ in 0..random.below(3) + 1 {
                format += &random.some(&["a", " ", "\0", "%%", "é"], 2);
                format.push('%');
                let flags = random.one(&[0, 0, 3]);
                format += &random.some(&["-", "+", " ", "#", "0"], flags);
                format += random.one(&["", "", "", "1", "5", "12", "99", "007"]);
                format += random.one(&["", "", "", ".", ".0", ".3", ".20", ".99"]);
                format +=
                    random.one(&["d", "i", "u", "x", "X", "o", "c", "s", "q", "e", "E", "f", "g", "G", "s", "d", "g"]);
                arguments.push(',');
                arguments += random.one(&[
                    "0",
                    "1",
                    "-1",
                    "3.7",
                    "-3.7",
                    "1e15",
                    "2^53",
                    "2^63",
                    "-2^63",
                    "2^64",
                    "1e300",
                    "1/3",
                    "1/0",
                    "-1/0",
                    "65",
                    "256",
                    "'12'",
                    "'3.9'",
                    "'0x10'",
                    "1e-5",
                    "123456789",
                    "0.5",
                    "2.5",
                    "'text'",
                    "'a\\0b'",
                    "('x'):rep(120)",
                    "'\"\\\\\\n\\r'",
                    "{}",
                    "nil",
                    "true",
                    "''",
                ]);
            }
            if random.below(40) == 0 {
                format += random.one(&["%", "%y", "%123d", "%.123d", "%------d", "%5%", "%l", "%n", "%-"]);
            }
            format!("string.format({}{arguments})", quoted(&format))
        })
        .collect();
    check(&expressions);
}

#[test]
fn numbers_read_and_print_the_same() {
    let mut random = Random(3);
    let expressions: Vec<String> = (0..6000)
        .map(|round| {
            const PARTS: &[&str] = &[
                "0", "1", "9", "12", "345", "00", ".", "e", "E", "+", "-", "x", "X", "p", "f", "a", " ", "\t", "inf",
                "nan", "5",
            ];
            let text = match round % 3 {
                0 => random.some(PARTS, 6),
                1 => {
                    let digits = random.some(&["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], 20);
                    let point = random.below(digits.len() + 1);
                    let exponent = random.one(&["", "", "e5", "e-5", "e20", "e-300", "e308"]);
                    format!("{}{}.{}{exponent}", random.one(&["", "-", " "]), &digits[..point], &digits[point..])
                }
                _ => {
                    let bits = random.below(60);
                    random.below(usize::MAX >> bits).to_string()
                }
            };
            let text = quoted(&text);
            match random.below(8) {
                0 => format!("tonumber({text})"),
                1 => format!("tostring(tonumber({text}))"),
                2 => format!("tonumber({text},{})", random.one(&["2", "8", "10", "16", "36", "10.9", "37", "1"])),
                3 => format!("{text} + {}", random.one(&["0", "1", "-1", "0.5", "'2'"])),
                4 => format!("tostring({text} * 1) .. ''"),
                5 => format!("-{text}"),
                6 => {
                    let function =
                        random.one(&["floor", "ceil", "abs", "sqrt", "log", "exp", "sin", "deg", "modf", "frexp"]);
                    format!("math.{function}({text})")
                }
                // Whole numbers, which are integers here, have the same text in `..`.
                _ => format!(
                    "tonumber('{}') .. '|' .. math.floor({}.5) .. '|' .. '{}' * 2",
                    random.below(100_000_000_000_000),
                    random.below(10_000_000),
                    random.below(1000),
                ),
            }
        })
        .collect();
    check(&expressions);
}

#[test]
fn sorts_compare_the_same_elements_in_the_same_order() {
    let mut random = Random(4);
    let expressions: Vec<String> = (0..1500)
        .map(|round| {
            let count = if round % 50 == 0 { 300 } else { random.below(40) };
            let range = random.one(&[2, 5, 20, 1000]);
            let numbers: Vec<String> = (0..count).map(|_| random.below(range).to_string()).collect();
            let numbers = numbers.join(",");
            match round % 5 {
                0 => format!("(function() local t = {{{numbers}}} table.sort(t) return table.concat(t, ' ') end)()"),
                1 => format!(
                    "(function() local t = {{{numbers}}} for i, v in ipairs(t) do t[i] = v .. '' end \
                     table.sort(t) return table.concat(t, ' ') end)()"
                ),
                // Who is compared with whom, and in what order equal ones end up.
                2 | 3 => {
                    let order = random.one(&["a.k < b.k", "a.k > b.k", "a.k <= b.k", "false", "a.k % 3 < b.k % 3", "true"]);
                    format!(
                        "(function() local t, log = {{{numbers}}}, {{}} for i, v in ipairs(t) do t[i] = {{k = v, i = i}} end \
                         local ok, m = pcall(table.sort, t, function(a, b) log[#log + 1] = a.i .. ':' .. b.i return {order} end) \
                         for i = 1, #t do t[i] = t[i].i end return ok, m, table.concat(t, ' '), table.concat(log, ' ') end)()"
                    )
                }
                _ => format!(
                    "(function() local m, n = {{}}, 0 m.__lt = function(a, b) n = n + 1 return a.k < b.k end \
                     local t = {{{numbers}}} for i, v in ipairs(t) do t[i] = setmetatable({{k = v, i = i}}, m) end \
                     table.sort(t) for i = 1, #t do t[i] = t[i].i end return n, table.concat(t, ' ') end)()"
                ),
            }
        })
        .collect();
    check(&expressions);
}

#[test]
fn chance_takes_the_same_course() {
    let mut random = Random(5);
    let expressions: Vec<String> = (0..300)
        .map(|_| {
            let seed = random.one(&["0", "1", "-1", "5.9", "2^31", "2^40 + 3", "123456789", "'77'"]);
            let bounds =
                random.one(&["", "10", "1", "1e6", "-5, 5", "3, 3", "2^31 - 1", "-2^31, 2^31 - 1", "0, 2^31 - 1"]);
            format!(
                "(function() math.randomseed({seed}) local r = {{}} for i = 1, {} do r[i] = math.random({bounds}) end \
                 return unpack(r) end)()",
                random.below(30) + 1
            )
        })
        .collect();
    check(&expressions);
}

#[test]
fn strings_and_tables_are_cut_the_same() {
    const PLACES: &[&str] = &[
        "0", "1", "2", "3", "5", "-1", "-2", "-9", "9", "2.7", "-1.5", "'2'", "2^31", "-2^31", "2^32 + 1", "2^63",
        "nil",
    ];
    let mut random = Random(6);
    let expressions: Vec<String> = (0..4000)
        .map(|_| {
            let (a, b) = (random.one(PLACES), random.one(PLACES));
            let text = quoted(&random.some(SUBJECTS, 5));
            let list = random.one(&["", "1", "1,2,3", "'a','b','c','d'", "1.5,2,'x'", "1,nil,3"]);
            match random.below(12) {
                0 => format!("string.sub({text},{a},{b})"),
                1 => format!("string.sub({text},{a})"),
                2 => format!("string.byte({text},{a},{b})"),
                3 => format!("string.rep({text},{})", random.one(&["0", "1", "2", "3.9", "-1", "'4'", "17", "nil"])),
                4 => format!("string.upper({text}),string.lower({text}),string.reverse({text}),string.len({text})"),
                5 => format!("table.concat({{{list}}},{text},{},{})", random.one(&["1", "2", "nil", "'1'"]), random.one(&["1", "2", "3", "nil"])),
                6 | 7 => {
                    let mut moves = String::new();
                    for _ in 0..random.below(6) {
                        moves += &match random.below(4) {
                            0 => "table.insert(t, 'n') ".to_owned(),
                            1 => format!("table.insert(t, {}, 'i') ", random.one(&["1", "2", "3", "0", "-1", "2.7"])),
                            2 => "r[#r + 1] = tostring(table.remove(t)) ".to_owned(),
                            _ => format!("r[#r + 1] = tostring((table.remove(t, {}))) ", random.one(&["1", "2", "9", "0"])),
                        };
                    }
                    format!(
                        "(function() local t, r = {{'a', 'b', 'c'}}, {{}} {moves} for i = -2, 12 do r[#r + 1] = tostring(t[i]) end \
                         return #t, table.concat(r, ' ') end)()"
                    )
                }
                8 => format!("unpack({{1,2,3}},{},{})", random.one(&["1", "2", "-1", "nil", "'2'"]), random.one(&["1", "3", "5", "0", "nil"])),
                9 => format!("select({a},1,2,3)"),
                10 => format!("table.maxn({{{list}}}),table.getn({{1,2,3}})"),
                _ => format!("string.char({})", random.one(&["65", "65,66", "0", "255", "256", "-1", "'66'", "67.9", ""])),
            }
        })
        .collect();
    check(&expressions);
}

#[test]
fn strings_are_read_the_same() {
    const WITHIN: &[&str] = &[
        r"\q", r"\.", r"\-", r"\\", r"\x41", r"\z  ", r"\u{48}", r"\065", r"\7", r"\n", "\\\n", r"\%", r"\/", "a", " ",
        "-", "--", "[", "[[", "]", "=", "é", r"\é",
    ];
    const BETWEEN: &[&str] = &[
        "..",
        " .. ",
        "..--[[ it's \\q ]]",
        ".. --[==[ ]] ]=] \"\\q ]==]",
        "..-- it's \\q\n",
        "..--[= '\n",
        "..({[1]='\\w'})[1]..",
        "..tostring(2-1-#'\\q')..",
    ];
    let mut random = Random(7);
    let expressions: Vec<String> = (0..3000)
        .map(|_| {
            let mut source = String::new();
            for n in 0..=random.below(4) {
                if n > 0 {
                    source += random.one(BETWEEN);
                }
                let within = random.some(WITHIN, 6);
                source += &match random.below(5) {
                    0 => format!("'{within}\"\\\"'"),
                    1 => format!("'{within}\\''"),
                    2 => format!("\"{within}'\\'\""),
                    3 => format!("\"{within}\\\"\""),
                    // A bracket that ends the string too early would make two of it.
                    _ => format!("[=[{}'\"]=]", within.replace(']', "")),
                };
            }
            source
        })
        .collect();
    check(&expressions);
}
