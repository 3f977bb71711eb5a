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

#[test]
fn modules_of_the_distribution_are_found_unless_the_environment_names_paths() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("paths.lua");
    std::fs::write(&script, "print(package.path) print(package.cpath)").unwrap();
    let file = directory.path().join("file.cfg");
    std::fs::write(
        &file,
        format!("global\n lua-load {}\nfrontend f\n mode http\n bind 127.0.0.1:1\n", script.display()),
    )
    .unwrap();
    let paths = |path: Option<&str>| {
        let mut check = Command::new(BINARY);
        check.arg("check").arg(&file).env_remove("LUA_PATH").env_remove("LUA_CPATH");
        path.map(|path| check.env("LUA_PATH", path));
        let output = check.output().unwrap();
        assert!(output.status.success());
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let own = "/usr/local/lib/lua/5.4/?/init.lua;/usr/share/lua/5.4/?.lua;/usr/share/lua/5.4/?/init.lua;./?.lua;";
    let all = paths(None);
    assert!(all.contains(own) && all.contains("-linux-gnu/lua/5.4/?.so;/usr/lib/lua/5.4/?.so;"), "{all}");
    assert!(paths(Some("/opt/?.lua;;")).contains(own));
    let set = paths(Some("/opt/?.lua;./?.lua"));
    assert!(set.starts_with("/opt/?.lua;./?.lua\n"), "{set}");
}
