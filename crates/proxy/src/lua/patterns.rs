//! `Map`, `Regex` and the functions of `core` that change map and ACL files.
//!
//! A file is shared with the rules that use it and with the stats socket, so all see each other's changes. It is read
//! together with the configuration, never at run time. A `Map` holds an index into the host's list, so it needs no
//! finalizer; a `Regex` owns its compiled form.

use std::ffi::{CStr, c_int};
use std::net::IpAddr;
use std::sync::Arc;

use sluicegate_pattern::{Captures, EditError, IndexId, Key, Kind, Method, PatternFile, PatternFiles, Regex};
use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::{check_bytes, function, push_bytes, raise};

use super::host::{Phase, check_object, host, key, push_text, raise_text, set_functions};
use super::table::packed;

/// Reads a map file, or finds it among those already read; the error is raised in the script.
pub type LoadMap = Arc<dyn Fn(&str) -> Result<Arc<PatternFile>, String> + Send + Sync>;

/// The map and ACL files of a configuration that scripts can access.
#[derive(Clone)]
pub struct LuaPatterns {
    /// Every file that was read.
    pub files: Arc<PatternFiles>,
    /// Reads a further file.
    pub load_map: LoadMap,
}

/// A map as one script uses it.
pub(super) struct MapHandle {
    file: Arc<PatternFile>,
    index: IndexId,
    method: Method,
}

/// The maximum number of maps of one state.
const MAPS_MAX: usize = 1024;

/// The number of entries that one call of a listing packs.
const PAGE: usize = 64;

/// The match methods, by their names in `Map`.
const METHODS: [(&CStr, Option<Method>); 14] = [
    (c"found", None),
    (c"bool", None),
    (c"int", Some(Method::Int)),
    (c"ip", Some(Method::Ip)),
    (c"bin", None),
    (c"len", None),
    (c"str", Some(Method::Str)),
    (c"beg", Some(Method::Beg)),
    (c"sub", Some(Method::Sub)),
    (c"dir", Some(Method::Dir)),
    (c"dom", Some(Method::Dom)),
    (c"end", Some(Method::End)),
    (c"reg", Some(Method::Reg)),
    (c"regm", None),
];

/// The number of the method `str`, the default.
const STR: i64 = 6;

/// Creates both classes and their functions; the table `core` is a global.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const CORE: [(&CStr, lua_CFunction); 4] = [
        (c"set_map", function!(set_map)),
        (c"del_map", function!(del_map)),
        (c"add_acl", function!(add_acl)),
        (c"del_acl", function!(del_acl)),
    ];
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        ffi::lua_getglobal(lua, c"core".as_ptr());
        set_functions(lua, &CORE);
        ffi::lua_settop(lua, -2);

        class(lua, c"Map", &key::MAP, &[(c"lookup", function!(lookup)), (c"slookup", function!(slookup))]);
        ffi::lua_createtable(lua, 0, 2 * METHODS.len() as c_int + 1);
        for (number, (name, _)) in METHODS.iter().enumerate() {
            for underscore in [c"", c"_"] {
                ffi::lua_pushstring(lua, underscore.as_ptr());
                ffi::lua_pushstring(lua, name.as_ptr());
                ffi::lua_concat(lua, 2);
                ffi::lua_pushinteger(lua, number as i64);
                ffi::lua_rawset(lua, -3);
            }
        }
        set_functions(lua, &[(c"new", function!(new_map))]);
        ffi::lua_setglobal(lua, c"Map".as_ptr());

        let methods = [(c"exec", function!(exec)), (c"match", function!(r#match))];
        class(lua, c"Regex", &key::REGEX, &methods);
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REGEX).cast());
        set_functions(lua, &[(c"__gc", function!(collect_regex))]);
        ffi::lua_settop(lua, -2);
        ffi::lua_createtable(lua, 0, 3);
        set_functions(lua, &methods);
        set_functions(lua, &[(c"new", function!(new_regex))]);
        ffi::lua_setglobal(lua, c"Regex".as_ptr());
    }
}

/// Creates a metatable with these methods, and with the name that HAProxy prints for its objects.
unsafe fn class(lua: *mut lua_State, name: &CStr, key: &'static u8, methods: &[(&CStr, lua_CFunction)]) {
    // SAFETY: as `open`.
    unsafe {
        ffi::lua_createtable(lua, 0, 4);
        ffi::lua_createtable(lua, 0, methods.len() as c_int);
        set_functions(lua, methods);
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        ffi::lua_pushstring(lua, name.as_ptr());
        ffi::lua_setfield(lua, -2, c"__name".as_ptr());
        ffi::lua_pushstring(lua, c"HAProxy class ".as_ptr());
        ffi::lua_pushstring(lua, name.as_ptr());
        ffi::lua_concat(lua, 2);
        ffi::lua_pushcclosure(lua, function!(name_of), 1);
        ffi::lua_setfield(lua, -2, c"__tostring".as_ptr());
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const *key).cast());
    }
}

/// `__tostring`: returns upvalue 1.
unsafe fn name_of(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        ffi::lua_pushvalue(lua, ffi::lua_upvalueindex(1));
        1
    }
}

/// `Map.new(file [, method])`.
unsafe fn new_map(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; what owns memory is made after the last call that may raise.
    unsafe {
        let top = ffi::lua_gettop(lua);
        if !(1..=2).contains(&top) {
            raise(lua, c"'new' needs at least 1 argument.");
        }
        let name = check_bytes(lua, 1);
        let number = if top == 2 { ffi::luaL_checkinteger(lua, 2) } else { STR };
        let method = match usize::try_from(number).ok().and_then(|number| METHODS.get(number)) {
            Some((_, Some(method))) => *method,
            Some((_, None)) => raise(lua, c"'new' doesn't support this match mode."),
            None => raise(lua, c"'new' needs a valid match method."),
        };
        let Ok(name) = std::str::from_utf8(name) else { raise(lua, c"'new': the file's name is not UTF-8.") };
        if host(lua).phase == Phase::Run {
            raise(lua, c"'new': map: cannot load map at runtime.");
        }
        let slot = ffi::lua_newuserdatauv(lua, size_of::<u32>(), 0) as *mut u32;
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::MAP).cast());
        ffi::lua_setmetatable(lua, -2);
        match add_map(lua, name, method) {
            Ok(index) => *slot = index,
            // The text itself moves into the call: the raised error leaves behind no value that owns memory.
            Err(mut message) => {
                message.insert_str(0, "'new': ");
                message.push('.');
                raise_text(lua, message)
            }
        }
        1
    }
}

/// Returns the index of a map in the host's list; a new map is added to it.
unsafe fn add_map(lua: *mut lua_State, name: &str, method: Method) -> Result<u32, String> {
    // SAFETY: nothing of Lua's is called.
    let host = unsafe { host(lua) };
    let file = (host.shared.patterns.load_map)(name)?;
    let index = file.index(method, false).map_err(|error| error.to_string())?;
    let known = host.maps.iter().position(|map| Arc::ptr_eq(&map.file, &file) && map.index == index);
    let place = match known {
        Some(place) => place,
        None if host.maps.len() >= MAPS_MAX => return Err("too many maps".to_owned()),
        None => {
            host.maps.push(MapHandle { file, index, method });
            host.maps.len() - 1
        }
    };
    Ok(place as u32)
}

/// Looks up argument 2 in the map of argument 1, and stores the value in the host's text; returns false if there is
/// none.
unsafe fn find(lua: *mut lua_State) -> bool {
    // SAFETY: a C function's usual stack; the block holds an index that `new_map` made.
    unsafe {
        if ffi::lua_gettop(lua) != 2 {
            raise(lua, c"'lookup' needs 2 arguments");
        }
        let slot = check_object::<u32>(lua, &key::MAP, c"Map expected");
        let Some(map) = host(lua).maps.get(*slot as usize) else { raise(lua, c"the map was not made") };
        let method = map.method;
        let key = match method {
            // Scripts pass the object, so what Lua calls the first argument is the second one here.
            Method::Int => Some(Key::Int(ffi::luaL_checkinteger(lua, 2))),
            Method::Ip => address(check_bytes(lua, 2)).map(Key::Ip),
            _ => Some(Key::Bytes(check_bytes(lua, 2))),
        };
        let host = host(lua);
        let (Some(key), Some(map)) = (key, host.maps.get(*slot as usize)) else { return false };
        let text = &mut host.text;
        map.file
            .lookup(map.index, key, |hit| {
                text.clear();
                text.extend_from_slice(hit.value);
            })
            .is_some()
    }
}

fn address(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

unsafe fn lookup(lua: *mut lua_State) -> c_int {
    // SAFETY: as `find`; the text is copied by Lua before anything can change it.
    unsafe {
        match find(lua) {
            true => push_bytes(lua, &host(lua).text),
            false => ffi::lua_pushnil(lua),
        }
        1
    }
}

unsafe fn slookup(lua: *mut lua_State) -> c_int {
    // SAFETY: as `lookup`.
    unsafe {
        match find(lua) {
            true => push_bytes(lua, &host(lua).text),
            false => push_bytes(lua, b""),
        }
        1
    }
}

/// Returns the file named by argument 1; raises if there is none.
unsafe fn known_file(lua: *mut lua_State, function: &str, what: &str) -> Arc<PatternFile> {
    // SAFETY: a C function's usual stack; the file is got after the last call that may raise.
    unsafe {
        let name = check_bytes(lua, 1);
        let file = std::str::from_utf8(name).ok().and_then(|name| host(lua).shared.patterns.files.get(name));
        match file {
            Some(file) => file,
            None => {
                let text = format!("'{function}': unknown {what} file '{}'", String::from_utf8_lossy(name));
                raise_text(lua, text)
            }
        }
    }
}

/// `core.set_map(file, key, value)`.
unsafe fn set_map(lua: *mut lua_State) -> c_int {
    // SAFETY: both words are read before the file is got, and nothing of Lua's is called while it is held.
    unsafe {
        if ffi::lua_gettop(lua) != 3 {
            raise(lua, c"'set_map' needs 3 arguments");
        }
        let (key, value) = (check_bytes(lua, 2), check_bytes(lua, 3));
        let file = known_file(lua, "set_map", "map");
        let set = file.put(key, value);
        drop(file);
        if let Err(EditError(mut message)) = set {
            message.insert_str(0, "'set_map': ");
            raise_text(lua, message);
        }
        0
    }
}

/// `core.add_acl(file, key)`.
unsafe fn add_acl(lua: *mut lua_State) -> c_int {
    // SAFETY: as `set_map`.
    unsafe {
        if ffi::lua_gettop(lua) != 2 {
            raise(lua, c"'add_acl' needs 2 arguments");
        }
        let key = check_bytes(lua, 2);
        let file = known_file(lua, "add_acl", "acl");
        let is_map = file.kind() == Kind::Map;
        // An existing entry is not added again.
        let added = if is_map || file.contains(key) { Ok(()) } else { file.add(key, b"") };
        drop(file);
        if is_map {
            raise(lua, c"'add_acl': the file is a map: core.set_map adds to it");
        }
        if let Err(EditError(mut message)) = added {
            message.insert_str(0, "'add_acl': ");
            raise_text(lua, message);
        }
        0
    }
}

unsafe fn del_map(lua: *mut lua_State) -> c_int {
    // SAFETY: as `delete`.
    unsafe { delete(lua, "del_map", c"'del_map' needs 2 arguments") }
}

unsafe fn del_acl(lua: *mut lua_State) -> c_int {
    // SAFETY: as `delete`.
    unsafe { delete(lua, "del_acl", c"'del_acl' needs 2 arguments") }
}

/// `core.del_map(file, key)` and `core.del_acl(file, key)`, which are one in HAProxy, too.
unsafe fn delete(lua: *mut lua_State, function: &str, usage: &CStr) -> c_int {
    // SAFETY: as `set_map`.
    unsafe {
        if ffi::lua_gettop(lua) != 2 {
            raise(lua, usage);
        }
        let key = check_bytes(lua, 2);
        known_file(lua, function, "acl").del(key);
        0
    }
}

/// Adds the native functions that `Patref` uses to the table on top.
pub(super) unsafe fn set_native(lua: *mut lua_State) {
    const NATIVE: [(&CStr, lua_CFunction); 8] = [
        (c"pattern_kind", function!(pattern_kind)),
        (c"pattern_get", function!(pattern_get)),
        (c"pattern_page", function!(pattern_page)),
        (c"pattern_add", function!(pattern_add)),
        (c"pattern_del", function!(pattern_del)),
        (c"pattern_set", function!(pattern_set)),
        (c"pattern_replace", function!(pattern_replace)),
        (c"pattern_clear", function!(pattern_clear)),
    ];
    // SAFETY: called inside a protected call, with a table on top.
    unsafe { set_functions(lua, &NATIVE) };
}

/// Runs `f` on the file that argument 1 names. `f` must not call a function of Lua that may raise an error.
unsafe fn with_file<T>(lua: *mut lua_State, f: impl FnOnce(&PatternFile) -> T) -> Option<T> {
    // SAFETY: the name is read first; the file is let go before anything of Lua's is called again.
    unsafe {
        let name = std::str::from_utf8(check_bytes(lua, 1)).ok()?;
        host(lua).shared.patterns.files.get(name).map(|file| f(&file))
    }
}

/// Pushes nil, or the error of a change to a file.
unsafe fn give_error(lua: *mut lua_State, changed: Option<Result<(), EditError>>) -> c_int {
    // SAFETY: the text moves into the host.
    unsafe {
        match changed {
            Some(Ok(())) => ffi::lua_pushnil(lua),
            Some(Err(EditError(message))) => push_text(lua, message.into_bytes()),
            None => push_bytes(lua, b"unknown file"),
        }
        1
    }
}

/// `pattern_kind(file)`: returns whether the file is a map; nil if it does not exist.
unsafe fn pattern_kind(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`.
    unsafe {
        match with_file(lua, |file| file.kind() == Kind::Map) {
            Some(is_map) => ffi::lua_pushboolean(lua, c_int::from(is_map)),
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

/// `pattern_get(file, key)`: the value of an entry, empty in an ACL's file.
unsafe fn pattern_get(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`; the value moves into the host.
    unsafe {
        let key = check_bytes(lua, 2);
        match with_file(lua, |file| file.get(key)).flatten() {
            Some(value) => push_text(lua, value),
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

/// `pattern_page(file, from)`: returns some entries, each as key and value preceded by their lengths, and the position
/// at which to continue.
unsafe fn pattern_page(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`.
    unsafe {
        check_bytes(lua, 1);
        let from = u32::try_from(ffi::luaL_checkinteger(lua, 2)).unwrap_or(u32::MAX);
        let out = &mut host(lua).text;
        out.clear();
        let next = with_file(lua, |file| {
            file.page(from, PAGE, |_, key, value| {
                packed(out, |out| out.extend_from_slice(key));
                packed(out, |out| out.extend_from_slice(value));
            })
        });
        push_bytes(lua, &host(lua).text);
        match next.flatten() {
            Some(next) => ffi::lua_pushinteger(lua, i64::from(next)),
            None => ffi::lua_pushnil(lua),
        }
        2
    }
}

/// `pattern_add(file, key, value)`.
unsafe fn pattern_add(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`.
    unsafe {
        let (key, value) = (check_bytes(lua, 2), check_bytes(lua, 3));
        let added = with_file(lua, |file| file.add(key, value));
        give_error(lua, added)
    }
}

/// `pattern_del(file, key)`: deletes the entries with this key; returns their number.
unsafe fn pattern_del(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`.
    unsafe {
        let key = check_bytes(lua, 2);
        let count = with_file(lua, |file| file.del(key)).unwrap_or(0);
        ffi::lua_pushinteger(lua, count as i64);
        1
    }
}

/// `pattern_set(file, key, value, force)`: returns nil, or the error; adds a missing key if `force` is true.
unsafe fn pattern_set(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`.
    unsafe {
        let (key, value) = (check_bytes(lua, 2), check_bytes(lua, 3));
        let force = ffi::lua_toboolean(lua, 4) != 0;
        let set = with_file(lua, |file| match file.set(key, value)? {
            0 if force => file.add(key, value),
            0 => Err(EditError("entry not found".to_owned())),
            _ => Ok(()),
        });
        give_error(lua, set)
    }
}

/// `pattern_replace(file, packed)`: replaces all entries at once; each is a key and a value preceded by their lengths.
unsafe fn pattern_replace(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`.
    unsafe {
        let mut rest = check_bytes(lua, 2);
        let mut texts = std::iter::from_fn(|| {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = behind;
            Some(text)
        });
        let entries = std::iter::from_fn(move || Some((texts.next()?, texts.next()?)));
        let replaced = with_file(lua, |file| file.replace(entries));
        give_error(lua, replaced)
    }
}

/// `pattern_clear(file)`: removes all entries.
unsafe fn pattern_clear(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_file`.
    unsafe {
        with_file(lua, PatternFile::clear);
        0
    }
}

/// `Regex.new(pattern, case_sensitive)`: true and an object, or false and the error.
unsafe fn new_regex(lua: *mut lua_State) -> c_int {
    // SAFETY: the expression is put into its block, whose metatable frees it, with no call that may raise between.
    unsafe {
        let pattern = check_bytes(lua, 1);
        ffi::luaL_checktype(lua, 2, ffi::LUA_TBOOLEAN);
        let sensitive = ffi::lua_toboolean(lua, 2) != 0;
        ffi::lua_pushboolean(lua, 1);
        let slot = ffi::lua_newuserdatauv(lua, size_of::<*mut Regex>(), 0) as *mut *mut Regex;
        *slot = std::ptr::null_mut();
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REGEX).cast());
        ffi::lua_setmetatable(lua, -2);
        match Regex::new(pattern, !sensitive) {
            Ok(regex) => *slot = Box::into_raw(Box::new(regex)),
            Err(error) => {
                let text = error.to_string().into_bytes();
                ffi::lua_pushboolean(lua, 0);
                push_text(lua, text);
            }
        }
        2
    }
}

unsafe fn collect_regex(lua: *mut lua_State) -> c_int {
    // SAFETY: the pointer is cleared before the expression goes, so a finalizer that is called by hand is harmless.
    unsafe {
        let slot = check_object::<*mut Regex>(lua, &key::REGEX, c"Regex expected");
        let regex = std::mem::replace(&mut *slot, std::ptr::null_mut());
        if !regex.is_null() {
            drop(Box::from_raw(regex));
        }
        0
    }
}

/// Returns the expression in argument 1; raises an error if it is something else.
unsafe fn check_regex<'a>(lua: *mut lua_State) -> &'a Regex {
    // SAFETY: the object stands on the stack while its expression is used.
    unsafe {
        let slot = check_object::<*mut Regex>(lua, &key::REGEX, c"Regex expected");
        match (*slot).as_ref() {
            Some(regex) => regex,
            None => raise(lua, c"the Regex was collected"),
        }
    }
}

/// `regex:exec(text)`: returns whether the text matches.
unsafe fn exec(lua: *mut lua_State) -> c_int {
    // SAFETY: as `check_regex`.
    unsafe {
        let regex = check_regex(lua);
        let text = check_bytes(lua, 2);
        ffi::lua_pushboolean(lua, c_int::from(regex.is_match(text)));
        1
    }
}

/// `regex:match(text)`: returns whether the text matches, and a table of the texts that its groups matched, the whole
/// match first.
unsafe fn r#match(lua: *mut lua_State) -> c_int {
    // SAFETY: as `check_regex`; captures have no destructor that matters, being plain places.
    unsafe {
        let regex = check_regex(lua);
        let text = check_bytes(lua, 2);
        let mut captures = Captures::default();
        let found = regex.captures(text, &mut captures);
        ffi::lua_pushboolean(lua, c_int::from(found));
        ffi::lua_createtable(lua, 0, 0);
        if found {
            for (group, place) in (0..).map_while(|group| captures.get(group)).enumerate() {
                push_bytes(lua, text.get(place.0..place.1).unwrap_or_default());
                ffi::lua_rawseti(lua, -2, group as i64 + 1);
            }
        }
        2
    }
}
