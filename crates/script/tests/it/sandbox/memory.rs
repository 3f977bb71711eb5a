//! Memory that runs out at any allocation.

use std::sync::Arc;

use sluicegate_script::{ErrorKind, MemoryLimit, State};

use super::support::run;

/// Scripts that allocate in every function that does so by itself.
const SCRIPTS: &[&str] = &[
    "return (('ab'):rep(3000):gsub('a', function(c) return c .. c end))",
    "return (('ab'):rep(3000):gsub('(a)', '%1%1'))",
    "return (('ab'):rep(3000):gsub('a', setmetatable({}, {__index = function(t, k) return k .. k end})))",
    "return string.format('%s%q%5.2f', ('x'):rep(3000), ('y'):rep(3000), 1.5) .. ('z'):rep(3000):upper():reverse()",
    "local t = {} for i = 1, 2000 do t[i] = 'k' .. i end table.sort(t) return table.concat(t, ',')",
    "local t = {} for i = 1, 500 do t[i] = {i} end table.sort(t, function(a, b) return a[1] > b[1] end) return t[1][1] .. ''",
    "local n = 0 local f = load(function() n = n + 1 if n < 900 then return ' ' end if n == 900 then return 'return 1' end end) return f() .. ''",
    "local r = '' for w in ('a b c '):rep(20):gmatch('%a+') do r = r .. w end return r",
    "local ok, m = xpcall(function() local x x() end, function(m) return 'm:' .. m end) \
     if m:find('not enough') or m:find('error handling') then error('not enough memory', 0) end return m",
];

#[test]
fn every_allocation_may_be_the_one_that_fails() {
    for script in SCRIPTS {
        let mut fresh = State::sandboxed(Arc::default(), ()).expect("a state");
        let expected = run(&mut fresh, script.as_bytes(), &[]).expect(script);
        // As much as a state needs, and then a little more each time until the script passes.
        let memory = Arc::new(MemoryLimit::new(usize::MAX / 2));
        let state = State::sandboxed(Arc::clone(&memory), ()).expect("a state");
        let own = memory.used();
        drop(state);
        assert_eq!(memory.used(), 0, "everything is given back");
        let (mut more, mut refused, mut step) = (0, 0, 64);
        loop {
            let memory = Arc::new(MemoryLimit::new(own + more));
            let mut state = State::sandboxed(Arc::clone(&memory), ()).expect("a state");
            match run(&mut state, script.as_bytes(), &[]) {
                Ok(result) => {
                    assert_eq!(result, expected, "{script}");
                    break;
                }
                Err(error) => {
                    refused += 1;
                    let of_memory = error.kind == ErrorKind::Memory || error.message.contains("not enough memory");
                    assert!(of_memory, "{script}: {error}");
                    // The state is as good as before, where there is room for the smallest script.
                    state.collect();
                    let next = run(&mut state, b"return '1'", &[]).map_err(|error| error.message);
                    assert!(more < 8192 || next == Ok(vec![b"1".to_vec()]), "{script}: {next:?}");
                }
            }
            drop(state);
            assert_eq!(memory.used(), 0, "{script}: everything is given back");
            more += step;
            step += step / 32;
        }
        assert!(refused > 3, "{script}: {refused}");
    }
}
