//! `Map`, `Regex` and `core`'s functions for map and ACL files: the same script and rules with Debian's haproxy and
//! with this program, compared by the responses of the script and the rules.

use std::path::Path;

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate};

use super::BINARY;

/// Tries everything that a script may do while it is loaded, and keeps the results.
const SCRIPT: &str = r#"
local said = {}
local function try(name, f, ...)
  local results = table.pack(pcall(f, ...))
  local text = name .. ':'
  for i = 1, results.n do
    text = text .. ' ' .. tostring(results[i]):gsub('^[^ ]+%.lua:%d+: ', ''):gsub('table: 0x%x+', 'table')
  end
  said[#said + 1] = text
end
local dir = '@SCRIPTS@'
try('none', Map.new)
try('three', Map.new, dir .. '/words.map', 1, 2)
try('method', Map.new, dir .. '/words.map', 99)
try('absent', function() return select(2, pcall(Map.new, 'absent.map')):match('failed to open pattern file') end)
local words = Map.new(dir .. '/words.map')
local beg = Map.new(dir .. '/words.map', Map._beg)
local last = Map.new(dir .. '/words.map', Map['end'])
local sub = Map.new(dir .. '/words.map', Map._sub)
local directory = Map.new(dir .. '/words.map', Map._dir)
local domain = Map.new(dir .. '/words.map', Map._dom)
local expressions = Map.new(dir .. '/words.map', Map._reg)
local numbers = Map.new(dir .. '/numbers.map', Map._int)
local networks = Map.new(dir .. '/networks.map', Map._ip)
try('name', function() return tostring(words) end)
try('lookup', function() return words:lookup('a') end)
try('two words', function() return words:lookup('bb') end)
try('absent', function() return words:lookup('zz') end)
try('absent, as text', function() return words:slookup('zz') end)
try('no key', function() return words:lookup() end)
try('two keys', function() return words:lookup('a', 'b') end)
try('a number', function() return words:lookup(5) end)
try('beg', function() return beg:lookup('abc') end)
try('end', function() return last:lookup('cba') end)
try('sub', function() return sub:lookup('ccbbcc') end)
try('dir', function() return directory:lookup('/x/bb/y') end)
try('dom', function() return domain:lookup('x.bb.y') end)
try('reg', function() return expressions:lookup('xyz') end)
try('int', function() return numbers:lookup(7) end)
try('int in text', function() return numbers:lookup('7') end)
try('int range', function() return numbers:lookup(15) end)
try('ip', function() return networks:lookup('10.1.1.1') end)
try('ip absent', function() return networks:slookup('11.1.1.1') end)
try('ip6', function() return networks:slookup('2001:db8::1') end)
try('no ip', function() return networks:slookup('x') end)
try('words', core.set_map, dir .. '/words.map', 'a')
try('unknown', core.set_map, 'unknown', 'a', '1')
try('unknown', core.del_map, 'unknown', 'a')
try('unknown', core.add_acl, 'unknown', 'a')
try('unknown', core.del_acl, 'unknown', 'a')
try('words', core.add_acl, 'unknown')
try('words', core.del_acl, 'unknown')
try('set', core.set_map, dir .. '/words.map', 'a', 'first')
try('seen', function() return words:lookup('a') end)
local ok, regex = Regex.new('a(b+)(z?)c(d)?', false)
try('regex', function() return ok, tostring(regex) end)
try('exec', function() return regex:exec('xABBCx'), regex:exec('zzz') end)
try('exec', function() return regex:exec() end)
try('match', function()
  local found, groups = regex:match('xABBCx')
  return found, #groups, table.concat(groups, '|')
end)
try('no match', function() return regex:match('q') end)
local strict = select(2, Regex.new('^A$', true))
try('case', function() return strict:exec('A'), strict:exec('a') end)
try('invalid', function() return (Regex.new('a(', true)) end)
core.register_fetches('said', function() return table.concat(said, '\n') end)
core.register_action('late', { 'http-req' }, function(txn)
  said = {}
  try('at run time', Map.new, dir .. '/words.map')
  core.set_map(dir .. '/words.map', 'new', 'made')
  core.set_map(dir .. '/words.map', 'bb', 'other')
  core.add_acl(dir .. '/some.acl', '/new')
  core.del_acl(dir .. '/some.acl', '/old')
  try('set', function() return words:lookup('new'), words:lookup('bb') end)
  core.del_map(dir .. '/words.map', 'new')
  try('gone', function() return words:lookup('new') end)
  try('regex', function() return (Regex.new('x', true)) end)
end)
core.register_fetches('look', function() return words:slookup('bb') end)
"#;

fn configuration(directory: &Path, gate: &Listening) -> String {
    let directory = directory.display();
    format!(
        "global\n lua-load {directory}/script.lua\n\
         defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
         frontend www\n bind {}\n \
         http-request lua.late if {{ path /late }}\n \
         http-request return status 200 content-type text/plain lf-string \"%[lua.said]\" if {{ path /body /late }}\n \
         http-request return status 200 content-type text/plain lf-string \"%[lua.look]\" if {{ path /look }}\n \
         http-request return status 200 content-type text/plain lf-string \
         \"%[str(bb),map({directory}/words.map,none)]\" if {{ path /rule }}\n \
         http-request deny deny_status 403 if {{ path -f {directory}/some.acl }}\n \
         http-request deny deny_status 404\n",
        gate.word()
    )
}

/// Returns one program's responses to the same requests.
fn conversation(address: &str, directory: &Path) -> Vec<String> {
    let ask = |path: &str| {
        let response = Client::connect(address).get(path);
        format!("{path}: {}", response.text())
    };
    let mut said = vec![ask("/body"), ask("/rule"), ask("/old"), ask("/new"), ask("/late")];
    said.extend([ask("/rule"), ask("/old"), ask("/new"), ask("/look")]);
    let directory = directory.display().to_string();
    said.into_iter().map(|text| text.replace(&directory, "DIR")).collect()
}

#[test]
fn maps_and_expressions_are_haproxys() {
    let gates = [Listening::new(), Listening::new()];
    let directories = [(); 2].map(|()| {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in [
            ("script.lua", SCRIPT),
            ("words.map", "# words\na 1\nbb two words\n5 five\n^x(.*)$ re-\\1\n"),
            ("numbers.map", "7 seven\n10:20 some\n"),
            ("networks.map", "10.0.0.0/8 net\n2001:db8::/32 six\n"),
            ("some.acl", "/old\n"),
        ] {
            let text = text.replace("@SCRIPTS@", directory.path().to_str().expect("a UTF-8 path"));
            std::fs::write(directory.path().join(name), text).expect("writable");
        }
        directory
    });
    let path = directories[0].path();
    let _haproxy = Haproxy::start(&configuration(path, &gates[0]), &[&gates[0]]);
    let theirs = conversation(&gates[0].address(), path);
    let [_, directory] = directories;
    let text = configuration(directory.path(), &gates[1]);
    let server = Sluicegate::start_in(BINARY, &text, &[&gates[1]], directory);
    let path = server.directory();
    let ours = conversation(&gates[1].address(), &path);
    for (theirs, ours) in theirs.iter().zip(&ours) {
        // 2.6 encodes the text of `lf-string` as a log line does; 3.2 does not.
        let theirs = theirs.replace("%0A", "\n");
        for (theirs, ours) in theirs.split('\n').zip(ours.split('\n')) {
            assert_eq!(ours, theirs);
        }
        assert_eq!(*ours, theirs);
    }
}
