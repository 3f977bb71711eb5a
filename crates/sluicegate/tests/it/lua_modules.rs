//! C modules that scripts bring: they resolve Lua's own functions in this program.

use std::process::Command;

use sluicegate_testkit::{Client, Listening, Sluicegate};

use crate::BINARY;

/// What `luaL_checkversion` and two stack calls need of the host; the declarations stand in for lua.h.
const MODULE: &str = r#"
typedef struct lua_State lua_State;
typedef int (*lua_CFunction)(lua_State *);
extern void luaL_checkversion_(lua_State *, double, unsigned long);
extern long long luaL_checkinteger(lua_State *, int);
extern void lua_pushinteger(lua_State *, long long);
extern void lua_pushcclosure(lua_State *, lua_CFunction, int);
static int twice(lua_State *l) { lua_pushinteger(l, 2 * luaL_checkinteger(l, 1)); return 1; }
int luaopen_twice(lua_State *l) {
    luaL_checkversion_(l, 504, 8 * 16 + 8);
    lua_pushcclosure(l, twice, 0);
    return 1;
}
"#;

#[test]
fn a_c_module_is_loaded_from_cpath() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("twice.c");
    std::fs::write(&source, MODULE).unwrap();
    let library = directory.path().join("twice.so");
    let status = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(status.success(), "gcc builds the module");
    std::fs::write(
        directory.path().join("module.lua"),
        "local twice = require('twice')\n\
         core.register_action('double', { 'http-req' }, function(txn) txn:set_var('txn.double', twice(21)) end)\n",
    )
    .unwrap();
    let gate = Listening::new();
    let text = format!(
        "global\n    lua-prepend-path @DIR@/?.so cpath\n    lua-load @DIR@/module.lua\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         listen gate\n    bind \"{}\"\n    http-request lua.double\n    \
         http-request return status 200 content-type text/plain lf-string %[var(txn.double)]\n",
        gate.word()
    );
    let _server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    assert_eq!(Client::connect(&gate.address()).get("/").text(), "42");
}
