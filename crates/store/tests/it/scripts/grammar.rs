//! Random scripts: trees of statements, so that a script that shows a difference can be reduced.
//!
//! A script has a few variables of each kind and uses them; only commands whose replies are deterministic are used.
//! Excluded: numbers so large that doubles lose digits, quotients next to `..` and the other differences that
//! `corpus/differences.txt` lists, and tables whose order is random.

use sluicegate_testkit::encode;

use crate::Random;

/// The keys that scripts use; some of them exist, of every type.
pub const KEYS: &[&str] = &["s", "n", "l", "h", "set", "ints", "z", "none", "new", "stream"];

/// The commands that create the keys before the scripts run.
pub const BEGIN: &[&str] = &[
    "SET s text",
    "SET n 10",
    "RPUSH l a b c 1 2",
    "HSET h f v g 5",
    "SADD set one",
    "SADD ints 1 2 3 10",
    "ZADD z 1 a 2.5 b -3 c",
    "SADD fixed 1",
    "XADD stream 5-1 f v",
    "HSET pairs f v",
];

/// A statement, with its inner statements.
#[derive(Clone, Debug)]
pub struct Statement {
    head: String,
    body: Vec<Statement>,
    tail: String,
}

impl Statement {
    fn line(text: String) -> Statement {
        Statement { head: text, body: Vec::new(), tail: String::new() }
    }

    fn write(&self, out: &mut String) {
        *out += &self.head;
        *out += "\n";
        self.body.iter().for_each(|statement| statement.write(out));
        if !self.tail.is_empty() {
            *out += &self.tail;
            *out += "\n";
        }
    }
}

/// A script, with its keys and arguments.
#[derive(Clone, Debug)]
pub struct Script {
    pub statements: Vec<Statement>,
    pub command: &'static str,
    pub keys: Vec<&'static str>,
    pub arguments: Vec<String>,
}

impl Script {
    pub fn body(&self) -> String {
        let mut body = String::new();
        self.statements.iter().for_each(|statement| statement.write(&mut body));
        body
    }

    /// Returns the request in RESP.
    pub fn request(&self) -> Vec<u8> {
        let (body, count) = (self.body(), self.keys.len().to_string());
        let mut words: Vec<&[u8]> = vec![self.command.as_bytes(), body.as_bytes(), count.as_bytes()];
        words.extend(self.keys.iter().map(|key| key.as_bytes()));
        words.extend(self.arguments.iter().map(|argument| argument.as_bytes()));
        encode(&words)
    }

    /// Returns all scripts with one statement less: without it, or with its inner statements in its place.
    pub fn smaller(&self) -> Vec<Script> {
        smaller(&self.statements).into_iter().map(|statements| Script { statements, ..self.clone() }).collect()
    }
}

fn smaller(statements: &[Statement]) -> Vec<Vec<Statement>> {
    let mut all = Vec::new();
    for at in 0..statements.len() {
        let with = |inside: Vec<Statement>| [&statements[..at], &inside, &statements[at + 1..]].concat();
        all.push(with(Vec::new()));
        if !statements[at].body.is_empty() {
            all.push(with(statements[at].body.clone()));
            let bodies = smaller(&statements[at].body).into_iter();
            all.extend(bodies.map(|body| with(vec![Statement { body, ..statements[at].clone() }])));
        }
    }
    all
}

/// Writes one script.
pub struct Writer<'r> {
    random: &'r mut Random,
    /// The visible variables, by scope, with their kinds.
    scopes: Vec<Vec<(Kind, String)>>,
    names: usize,
    left: usize,
    keys: usize,
    arguments: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A whole number below a million or so.
    Int,
    /// Any number.
    Number,
    Text,
    /// An array without holes.
    List,
    /// The reply of a command.
    Reply,
}

/// Commands with their arguments: `K` a key, `I` a whole number, `N` a number, `T` a text, `M` a member, `S` a short
/// text without blanks.
const COMMANDS: &[&str] = &[
    "GET K",
    "GET K",
    "SET K T",
    "SET K I",
    "SET K N",
    "SETNX K T",
    "GETSET K T",
    "APPEND K T",
    "STRLEN K",
    "INCR K",
    "DECR K",
    "INCRBY K I",
    "DECRBY K I",
    "GETRANGE K I I",
    "SETRANGE K 3 T",
    "MGET K K",
    "MSET K T K I",
    "GETDEL K",
    "DEL K",
    "DEL K K",
    "EXISTS K",
    "EXISTS K K",
    "TYPE K",
    "EXPIRE K 1000",
    "PERSIST K",
    "TTL none",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K",
    "COPY K K REPLACE",
    "TOUCH K K",
    "LPUSH K T",
    "RPUSH K T I",
    "LPUSH K I T",
    "LPOP K",
    "RPOP K",
    "LPOP K 2",
    "LLEN K",
    "LRANGE K 0 -1",
    "LRANGE K I I",
    "LINDEX K I",
    "LSET K 0 T",
    "LREM K 0 T",
    "LINSERT K BEFORE a T",
    "LTRIM K 0 3",
    "RPOPLPUSH K K",
    "LMOVE K K LEFT RIGHT",
    "LPOS K a",
    "HSET K M T",
    "HSET K M I M T",
    "HGET K M",
    "HMGET K M M",
    "HDEL K M",
    "HLEN K",
    "HEXISTS K M",
    "HINCRBY K M I",
    "HSETNX K M T",
    "HSTRLEN K M",
    "SADD K M",
    "SADD ints I",
    "SREM K M",
    "SISMEMBER K M",
    "SMISMEMBER K M M",
    "SCARD K",
    "SMEMBERS fixed",
    "HGETALL pairs",
    "SINTERCARD 2 K K",
    "SMOVE K K M",
    "ZADD K I M",
    "ZADD K 1.5 M 2 M",
    "ZINCRBY K I M",
    "ZSCORE K M",
    "ZRANK K M",
    "ZREVRANK K M",
    "ZCARD K",
    "ZCOUNT K -inf +inf",
    "ZRANGE K 0 -1",
    "ZRANGE K 0 -1 WITHSCORES",
    "ZREVRANGE K 0 1",
    "ZRANGEBYSCORE K 0 I",
    "ZREM K M",
    "ZPOPMIN K",
    "ZPOPMAX K 2",
    "ZMSCORE K M M",
    "ZADD K NX I M",
    "ZADD K INCR I M",
    "SETBIT K 9 1",
    "XADD K 5-* f M",
    "XADD stream 9-* f M g T",
    "XADD K MAXLEN 2 9-* M T",
    "XLEN K",
    "XRANGE K - +",
    "XREVRANGE K + - COUNT 1",
    "XREAD STREAMS stream K 0 5",
    "XREAD COUNT 1 STREAMS K 5-1",
    "XDEL K 5-2",
    "XTRIM K MAXLEN 3",
    "GETBIT K 3",
    "BITCOUNT K",
    "PFADD hll M",
    "PING",
    "ECHO T",
    "DBSIZE",
    "OBJECT REFCOUNT none",
    "SELECT 1",
    "SELECT 0",
    "SET K",
    "NOSUCH K",
    "GET",
    "HSET K M",
    "INCRBY K T",
    "LSET K T T",
    "MULTI",
    "GET K K",
    "ZADD K T M",
    "SORT ints",
    "EXPIRE K T",
    "SUBSCRIBE K",
    "PUBLISH channel T",
];

const TEXTS: &[&str] = &["''", "'a'", "'b'", "'text'", "'10'", "'3.5'", "'x y'", "'f'", "'A,b;c'", "'\\0z'", "'-7'"];
const MEMBERS: &[&str] = &["a", "b", "f", "g", "one", "7"];

impl<'r> Writer<'r> {
    /// Returns a script of about this number of statements.
    pub fn script(random: &'r mut Random, size: usize) -> Script {
        let keys: Vec<&str> = (0..random.below(4)).map(|_| random.pick(KEYS)).collect();
        let arguments: Vec<String> = (0..random.below(4))
            .map(|_| random.pick(&["1", "5", "-2", "x", "", "2.5", "some text", "0"]).to_owned())
            .collect();
        let command = if random.below(12) == 0 { "EVAL_RO" } else { "EVAL" };
        let mut writer = Writer {
            random,
            scopes: vec![Vec::new()],
            names: 0,
            left: size,
            keys: keys.len(),
            arguments: arguments.len(),
        };
        let mut statements = Vec::new();
        if writer.chance(4) {
            statements.push(Statement::line("redis.setresp(3)".to_owned()));
        }
        while writer.left > 0 {
            statements.push(writer.statement(0));
        }
        let returned = writer.returned();
        statements.push(Statement::line(format!("return {returned}")));
        Script { statements, command, keys, arguments }
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn declare(&mut self, kind: Kind) -> String {
        let name = self.name();
        self.scopes.last_mut().expect("the outermost").push((kind, name.clone()));
        name
    }

    fn variable(&mut self, kind: Kind) -> Option<String> {
        let fits: Vec<String> =
            self.scopes.iter().flatten().filter(|(of, _)| *of == kind).map(|(_, name)| name.clone()).collect();
        (!fits.is_empty()).then(|| fits[self.random.below(fits.len())].clone())
    }

    /// Returns statements in a scope of their own.
    fn block(&mut self, depth: usize) -> Vec<Statement> {
        self.scopes.push(Vec::new());
        let body = (0..1 + self.random.below(3)).map(|_| self.statement(depth + 1)).collect();
        self.scopes.pop();
        body
    }

    fn wrap(&mut self, head: String, depth: usize, tail: &str) -> Statement {
        let body = self.block(depth);
        Statement { head, body, tail: tail.to_owned() }
    }

    fn statement(&mut self, depth: usize) -> Statement {
        self.left = self.left.saturating_sub(1);
        let choice = if depth > 3 { self.random.below(10) } else { self.random.below(18) };
        match choice {
            0..4 => {
                let call = self.call();
                match self.chance(3) {
                    true => Statement::line(call),
                    false => {
                        let name = self.declare(Kind::Reply);
                        Statement::line(format!("local {name} = {call}"))
                    }
                }
            }
            4..6 => {
                let value = self.int(0);
                let name = self.declare(Kind::Int);
                Statement::line(format!("local {name} = {value}"))
            }
            6 => {
                let value = self.number(0);
                let name = self.declare(Kind::Number);
                Statement::line(format!("local {name} = {value}"))
            }
            7 => {
                let value = self.text(0);
                let name = self.declare(Kind::Text);
                Statement::line(format!("local {name} = {value}"))
            }
            8 => {
                let value = self.list(0);
                let name = self.declare(Kind::List);
                Statement::line(format!("local {name} = {value}"))
            }
            9 => self.change(),
            10 | 11 => {
                let condition = self.condition(0);
                let mut statement = self.wrap(format!("if {condition} then"), depth, "end");
                if self.chance(2) {
                    let otherwise = self.wrap("else".to_owned(), depth, "");
                    statement.body.push(otherwise);
                }
                statement
            }
            12 => {
                let (from, to) = (self.random.below(3), self.random.below(5));
                let name = self.name();
                self.scopes.push(vec![(Kind::Int, name.clone())]);
                let statement = self.wrap(format!("for {name} = {from}, {to} do"), depth, "end");
                self.scopes.pop();
                statement
            }
            13 => {
                // The loop runs over a copy: with a body that extends the list, it would never end.
                let list = self.list(0);
                let (index, value) = (self.name(), self.name());
                self.scopes.push(vec![(Kind::Int, index.clone()), (Kind::Reply, value.clone())]);
                let statement =
                    self.wrap(format!("for {index}, {value} in ipairs({{unpack({list})}}) do"), depth, "end");
                self.scopes.pop();
                statement
            }
            14 => {
                let name = self.name();
                let limit = 1 + self.random.below(3);
                let mut statement =
                    self.wrap(format!("local {name} = 0 while {name} < {limit} do {name} = {name} + 1"), depth, "end");
                if self.chance(3) {
                    let condition = self.condition(1);
                    statement.body.push(Statement::line(format!("if {condition} then break end")));
                }
                statement
            }
            15 => {
                let (ok, error) = (self.name(), self.name());
                let statement = self.wrap(format!("local {ok}, {error} = pcall(function()"), depth, "end)");
                self.scopes.last_mut().expect("the outermost").push((Kind::Reply, error));
                statement
            }
            16 => {
                let (name, parameter) = (self.name(), self.name());
                self.scopes.push(vec![(Kind::Int, parameter.clone())]);
                let result = self.int(1);
                let mut statement = self.wrap(format!("local function {name}({parameter})"), depth, "end");
                statement.body.push(Statement::line(format!("return {result}")));
                self.scopes.pop();
                let argument = self.int(1);
                let value = self.declare(Kind::Reply);
                statement.tail = format!("end local {value} = {name}({argument})");
                statement
            }
            _ => {
                let name = self.name();
                let mut statement = self.wrap(format!("local {name} = coroutine.wrap(function()"), depth, "");
                statement.body.push(Statement::line(format!("coroutine.yield({})", self.random.below(9))));
                let value = self.declare(Kind::Reply);
                statement.tail = format!("end) local {value} = {name}()");
                statement
            }
        }
    }

    /// Returns a change of a variable, or a statement that fails.
    fn change(&mut self) -> Statement {
        let text = match self.random.below(8) {
            0 | 1 => self.variable(Kind::Int).map(|name| format!("{name} = {}", self.int(1))),
            2 => self.variable(Kind::Text).map(|name| format!("{name} = {}", self.text(1))),
            3 => self.variable(Kind::List).map(|name| format!("table.insert({name}, {})", self.item())),
            4 => self.variable(Kind::List).map(|name| format!("{name}[#{name} + 1] = {}", self.item())),
            5 => self.variable(Kind::List).map(|name| format!("table.remove({name})")),
            6 => self.variable(Kind::List).map(|name| format!("table.sort({name})")),
            _ => Some(self.failure()),
        };
        Statement::line(text.unwrap_or_else(|| "do end".to_owned()))
    }

    /// Returns an element for a list: not a list, because a list could be put into itself.
    fn item(&mut self) -> String {
        match self.random.below(4) {
            0 => self.int(1),
            1 => self.text(1),
            2 => "nil".to_owned(),
            _ => self.variable(Kind::Reply).unwrap_or_else(|| "1".to_owned()),
        }
    }

    fn failure(&mut self) -> String {
        let (any, other) = (self.any(1), self.any(1));
        // The error messages for arithmetic on strings differ.
        let no_text = match self.random.below(3) {
            0 => self.list(1),
            1 => self.random.pick(&["true", "nil", "function() end"]).to_owned(),
            _ => self.int(1),
        };
        let name = self.name();
        match self.random.below(9) {
            0 => format!("local {name} = {no_text} {name} = {name} + 1"),
            1 => format!("local {name} = {any} {name} = {name}.field"),
            2 => format!("local {name} = {any} {name} = {name} < 3"),
            3 => format!("local {name} = {any} {name} = #{name}"),
            4 => format!("local {name} = {any} {name}()"),
            5 => "error('raised ' .. 1)".to_owned(),
            6 => "error({err = 'MY raised'})".to_owned(),
            7 => format!("assert({other}, 'asserted')"),
            _ => "do return redis.error_reply('MY early') end".to_owned(),
        }
    }

    fn call(&mut self) -> String {
        let how = if self.chance(4) { "call" } else { "pcall" };
        let words: Vec<&str> = self.random.pick(COMMANDS).split(' ').collect();
        let words: Vec<String> = words
            .into_iter()
            .map(|word| match word {
                "K" => self.key(),
                "I" => self.int(1),
                "N" => self.number(1),
                "T" => self.text(1),
                "M" => format!("'{}'", self.random.pick(MEMBERS)),
                word => format!("'{word}'"),
            })
            .collect();
        format!("redis.{how}({})", words.join(", "))
    }

    fn key(&mut self) -> String {
        let is_declared = self.keys > 0 && self.chance(3);
        match is_declared {
            true => format!("KEYS[{}]", 1 + self.random.below(self.keys)),
            false => format!("'{}'", self.random.pick(KEYS)),
        }
    }

    fn int(&mut self, depth: usize) -> String {
        if depth > 2 {
            return self.random.below(10).to_string();
        }
        let depth = depth + 1;
        match self.random.below(15) {
            0..4 => self.random.below(20).to_string(),
            4..6 => self.variable(Kind::Int).unwrap_or_else(|| "2".to_owned()),
            6 => format!("({} + {})", self.int(depth), self.int(depth)),
            7 => format!("({} - {})", self.int(depth), self.int(depth)),
            8 => format!("({} % {})", self.int(depth), 2 + self.random.below(7)),
            9 => format!("#{}", self.text(depth)),
            10 => format!("#{}", self.list(depth)),
            11 => format!("math.floor({})", self.number(depth)),
            12 => format!("math.{}({}, {})", self.random.pick(&["max", "min"]), self.int(depth), self.int(depth)),
            13 => format!("(tonumber({}) and 1 or 0)", self.text(depth)),
            _ => format!("-{}", 1 + self.random.below(9)),
        }
    }

    fn number(&mut self, depth: usize) -> String {
        if depth > 2 {
            return "1.5".to_owned();
        }
        let depth = depth + 1;
        match self.random.below(7) {
            0 => self.variable(Kind::Number).unwrap_or_else(|| "0.25".to_owned()),
            1 => format!("({} / {})", self.int(depth), 1 + self.random.below(6)),
            2 => format!("({} * 0.5)", self.int(depth)),
            3 => self.random.pick(&["0.1", "-2.75", "1e3", "3.0", "1e-3"]).to_owned(),
            4 => format!("({} + {})", self.number(depth), self.int(depth)),
            5 => format!("math.{}({})", self.random.pick(&["abs", "ceil", "sqrt"]), self.random.below(30)),
            _ => self.int(depth),
        }
    }

    fn text(&mut self, depth: usize) -> String {
        if depth > 2 {
            return self.random.pick(TEXTS).to_owned();
        }
        let depth = depth + 1;
        match self.random.below(18) {
            0..4 => self.random.pick(TEXTS).to_owned(),
            4 | 5 => self.variable(Kind::Text).unwrap_or_else(|| "'t'".to_owned()),
            6 => format!("({} .. {})", self.text(depth), self.text(depth)),
            7 => format!("({} .. {})", self.text(depth), self.random.below(100)),
            8 => format!("tostring({})", self.number(depth)),
            9 => format!("string.sub({}, {}, {})", self.text(depth), self.random.below(4), self.int(depth)),
            10 => format!("string.{}({})", self.random.pick(&["upper", "lower", "reverse"]), self.text(depth)),
            11 => format!("string.rep({}, {})", self.text(depth), self.random.below(4)),
            12 => format!("string.format('%d:%s', {}, {})", self.int(depth), self.text(depth)),
            13 => {
                format!("string.format('{}', {})", self.random.pick(&["%.3f", "%5.1f", "%g", "%s"]), self.number(depth))
            }
            14 => format!(
                "(string.gsub({}, '{}', '<%0>'))",
                self.text(depth),
                self.random.pick(&["%w", "%d+", "[a-c]", "."])
            ),
            15 => format!("type({})", self.any(depth)),
            16 if self.arguments > 0 => format!("ARGV[{}]", 1 + self.random.below(self.arguments)),
            _ => format!(
                "(string.match({}, '{}') or 'no')",
                self.text(depth),
                self.random.pick(&["%a+", "(%d)", "^.", "x$"])
            ),
        }
    }

    fn list(&mut self, depth: usize) -> String {
        if depth < 3
            && self.chance(3)
            && let Some(name) = self.variable(Kind::List)
        {
            return name;
        }
        let items: Vec<String> = (0..self.random.below(4))
            .map(|_| match self.random.below(3) {
                0 => self.int(depth + 1),
                1 => self.text(depth + 1),
                _ => "true".to_owned(),
            })
            .collect();
        format!("{{{}}}", items.join(", "))
    }

    fn any(&mut self, depth: usize) -> String {
        match self.random.below(9) {
            0 => self.int(depth),
            1 => self.number(depth),
            2 => self.text(depth),
            3 => self.list(depth),
            4 => self.random.pick(&["true", "false"]).to_owned(),
            5 => "nil".to_owned(),
            _ => self.variable(Kind::Reply).unwrap_or_else(|| "1".to_owned()),
        }
    }

    fn condition(&mut self, depth: usize) -> String {
        if depth > 2 {
            return "true".to_owned();
        }
        let depth = depth + 1;
        match self.random.below(9) {
            0 => {
                let sign = self.random.pick(&["<", "<=", ">", "==", "~="]).to_owned();
                format!("{} {sign} {}", self.int(depth), self.int(depth))
            }
            1 => format!("{} == {}", self.text(depth), self.text(depth)),
            2 => format!("{} < {}", self.text(depth), self.text(depth)),
            3 => format!("not ({})", self.condition(depth)),
            4 => format!("({}) and ({})", self.condition(depth), self.condition(depth)),
            5 => format!("({}) or ({})", self.condition(depth), self.condition(depth)),
            6 => format!("type({}) == '{}'", self.any(depth), self.random.pick(&["table", "string", "number", "nil"])),
            7 => self.variable(Kind::Reply).unwrap_or_else(|| "false".to_owned()),
            _ => format!("redis.pcall('EXISTS', {}) == 1", self.key()),
        }
    }

    /// Returns the script's result: mostly a table of its variables.
    fn returned(&mut self) -> String {
        let mut values: Vec<(Kind, String)> = self.scopes[0].clone();
        if values.is_empty() || self.chance(5) {
            return self.any(0);
        }
        while values.len() > 12 {
            let at = self.random.below(values.len());
            values.remove(at);
        }
        let shown = values.into_iter().map(|(kind, name)| match kind {
            // An array ends at a nil.
            Kind::Reply => format!("{name} == nil and 'nil' or {name}"),
            _ => name,
        });
        format!("{{{}}}", shown.collect::<Vec<_>>().join(", "))
    }
}
