-- The parts of HAProxy's API that are Lua: objects of plain tables over the functions of `native`.
local native = ...

-- Scripts may change the libraries, and 'tune.lua.openlibs' may leave them out: what is needed here is taken before.
local string, table, math, os, package = string, table, math, os, package
local byte, find, gmatch, gsub, match, sub, upper =
    string.byte, string.find, string.gmatch, string.gsub, string.match, string.sub, string.upper
local concat, insert, pack, unpack = table.concat, table.insert, table.pack, table.unpack
local string_pack, string_unpack = string.pack, string.unpack
local tointeger, math_type = math.tointeger, math.type

-- The first argument of a method as a text; an error for what is none.
local function text_of(value, method)
    local kind = type(value)
    if kind == "string" or kind == "number" then return tostring(value) end
    if value == nil then kind = "no value" end
    error("bad argument #1 to '" .. method .. "' (string expected, got " .. kind .. ")", 3)
end

-- Proxies and servers. The object of a proxy names its place in the configuration (field 1), that of a server also the
-- server's place and its life; what they tell is read from the running process at each call. A server that was deleted
-- tells nil.
local Server = {}
Server.__index = Server

-- The objects of servers that scripts hold, by their lives, so that each server has one.
local objects = setmetatable({}, { __mode = "v" })

local function object_of(server)
    local known = objects[server[3]]
    if known then
        known[2] = server[2]
        return known
    end
    objects[server[3]] = setmetatable(server, Server)
    return server
end

-- What `proxy.servers` is: nothing of its own, so that it is what runs.
local function list_of(proxy)
    return setmetatable({}, {
        __index = function(_, name)
            local server = type(name) == "string" and native.servers(proxy, name)[1]
            return server and object_of(server) or nil
        end,
        __newindex = function() end,
        __len = function() return #native.servers(proxy) end,
        __pairs = function(self)
            local servers, at = native.servers(proxy), 0
            return function()
                at = at + 1
                local server = servers[at]
                if server then return server.name, object_of(server) end
            end, self, nil
        end,
    })
end

-- What takes no argument and tells something.
for method, what in pairs({
    get_name = "name", get_puid = "puid", get_addr = "addr", get_cur_sess = "cur_sess",
    get_pend_conn = "pend_conn", get_maxconn = "maxconn", get_weight = "weight", is_draining = "draining",
    is_backup = "backup", is_dynamic = "dynamic",
}) do
    Server[method] = function(self) return native.server(self, what) end
end
function Server:get_rid()
    local life = native.server(self, "rid")
    return life and tostring(life)
end
function Server:get_stats() return native.server_stats(self) end
function Server:get_proxy()
    if native.server(self, "name") then return core.proxies[native.proxy(self[1], "name")] end
end
function Server:set_maxconn(value) return native.set_server(self, "maxconn", tostring(value)) end
function Server:set_weight(value) return native.set_server(self, "weight", text_of(value, "set_weight")) end
function Server:set_addr(address, port)
    return native.set_server(self, "addr", text_of(address, "set_addr"), port and tostring(port))
end
-- What takes no argument and gives nothing.
for name, what in pairs({
    set_drain = "drain", set_maint = "maint", set_ready = "ready", check_enable = "check_enable",
    check_disable = "check_disable", check_force_up = "check_force_up", check_force_nolb = "check_force_nolb",
    check_force_down = "check_force_down", agent_enable = "agent_enable", agent_disable = "agent_disable",
    agent_force_up = "agent_force_up", agent_force_down = "agent_force_down",
}) do
    Server[name] = function(self) native.set_server(self, what) end
end
function Server:shut_sess() native.shut_server(self) end

function Server:tracking()
    local target = native.tracking(self)
    return target and target[1] and object_of(target[1])
end

function Server:get_trackers()
    local trackers = native.trackers(self)
    for index, server in ipairs(trackers or {}) do trackers[index] = object_of(server) end
    return trackers
end

-- Events. A subscription's function and its object are what `native` keeps of it.
local EventSub = { __name = "EventSub" }
EventSub.__index = EventSub

function EventSub:unsub() native.event_unsub(self[1]) end

local function event_sub(of, types, f, ...)
    if f == nil or select("#", ...) > 0 then error("'event_sub' needs 2 arguments", 2) end
    if type(types) ~= "table" then
        error("bad argument #1 to 'event_sub' (table of strings expected, got " .. type(types) .. ")", 2)
    end
    local kinds, families = 0, 0
    for _, name in pairs(types) do
        if type(name) ~= "string" then
            error("bad argument #1 to 'event_sub' (table of strings expected, got " .. type(types) .. ")", 2)
        end
        local kind = native.event_kind(name)
        if not kind then error("bad argument #1 to 'event_sub' ('" .. name .. "' event type is unknown)", 2) end
        kinds = kinds | kind
        families = families | (kind > 0xff and 2 or 1)
    end
    -- Types of two families are none.
    if families ~= 1 and families ~= 2 then error("event_sub: no valid event types were provided", 2) end
    if type(f) ~= "function" then
        error("bad argument #2 to 'event_sub' (function expected, got " .. type(f) .. ")", 2)
    end
    local sub = setmetatable({}, EventSub)
    sub[1] = native.event_sub(kinds, { f, sub }, of)
    if sub[1] then return sub end
end

function core.event_sub(...) return event_sub(nil, ...) end
function Server:event_sub(...) return event_sub(self[3], ...) end

-- Calls a subscription's function. The data come as values by their dotted names.
local function dispatch(handler, event, when, flat, proxy, life)
    -- As in HAProxy, events of pattern references have no data, nor a place for them.
    if not flat then return handler[1](event, handler[2], when) end
    local data = {}
    for path, value in pairs(flat) do
        local inner, last = data, nil
        for part in gmatch(path, "[^.]+") do
            if last then
                inner[last] = inner[last] or {}
                inner = inner[last]
            end
            last = part
        end
        inner[last] = value
    end
    local server = native.servers(proxy, data.name)[1]
    if server and server[3] == life then data.reference = object_of(server) end
    return handler[1](event, data, handler[2], when)
end

-- Commands that are sent together: what `write` calls on its argument is gathered there, and their replies come as a
-- table in the same order.
local Pipeline = {}
function Pipeline:__index(name)
    return function(commands, ...)
        commands[#commands + 1] = name == "call" and {...} or {name, ...}
    end
end

local function gather(write, ...)
    local commands = setmetatable({}, Pipeline)
    write(commands, ...)
    return setmetatable(commands, nil)
end

function native.redis_methods.pipeline(store, write)
    return native.batch(store, gather(write))
end

-- A connection of its own while a function runs, whose argument it is: any name on it is a command. It goes back however
-- the function ends.
local Own = {}

local on_own = {
    call = function(own, ...) return native.own_call(own[1], false, ...) end,
    pcall = function(own, ...) return native.own_call(own[1], true, ...) end,
    pipeline = function(own, write) return native.own_batch(own[1], gather(write)) end,
}

function Own:__index(name)
    return on_own[name] or function(own, ...) return native.own_call(own[1], false, name, ...) end
end

function native.redis_methods.own(store, work)
    if type(work) ~= "function" then error("own: a function is expected", 2) end
    local block <close> = native.own(store)
    return work(setmetatable({block}, Own))
end

-- Commands with nobody else in between, on a connection of its own; nil if a watched key has changed.
local function transact(own, commands)
    insert(commands, 1, {"MULTI"})
    commands[#commands + 1] = {"EXEC"}
    local replies = native.own_batch(own[1], commands)
    local done = replies[replies.n]
    if type(done) == "table" and done.err then
        -- Which command was refused says more than that the transaction was.
        for index = 1, replies.n - 1 do
            local reply = replies[index]
            if type(reply) == "table" and reply.err then error(reply.err, 0) end
        end
        error(done.err, 0)
    end
    return done
end

-- A transaction that watches keys, on a connection of its own. One whose keys have moved to another node begins again there.
local function watched(store, watch, tries, write)
    local function try(own)
        while tries > 0 do
            tries = tries - 1
            own:watch(unpack(watch))
            local commands = gather(write, own)
            if #commands == 0 then return {n = 0} end
            local done = transact(own, commands)
            if done ~= nil then return done end
        end
    end
    while true do
        local ok, done = pcall(store.own, store, try)
        if ok then return done end
        local moved = type(done) == "string" and find(done, "^ELSEWHERE ")
        if not moved or tries == 0 then error(done, 0) end
    end
end

-- One that watches none needs no connection of its own, unless `write` asks for it or a command is not for a shared one.
local function unwatched(store, tries, write)
    local own
    local function take()
        own = own or setmetatable({native.own(store)}, Own)
        return own
    end
    local asked <close> = setmetatable({}, {
        __index = function(_, name)
            local method = take()[name]
            return function(_, ...) return method(own, ...) end
        end,
        __close = function() if own then native.own_close(own[1]) end end,
    })
    for _ = 1, tries do
        local commands = gather(write, asked)
        if #commands == 0 then return {n = 0} end
        local done = not own and native.together(store, commands)
        if done ~= false then return done end
        done = transact(take(), commands)
        if done ~= nil then return done end
    end
end

-- What `write` calls on its first argument is done together, unless a watched key changed: then there are no replies, or
-- `write` is called again, `retry` times. Its second argument is the connection, for what it wants to know before.
function native.redis_methods.multi(store, options, write)
    if write == nil then options, write = {}, options end
    if type(write) ~= "function" or type(options) ~= "table" then error("multi: a function is expected", 2) end
    local watch, tries = options.watch, 1 + (options.retry or 0)
    if type(watch) == "string" then watch = {watch} end
    if watch and #watch > 0 then return watched(store, watch, tries, write) end
    return unwatched(store, tries, write)
end

-- Channels that a script listens to. A connection that ended is made again by the next call, which says so: messages may
-- have been missed.
local Subscription = {}
Subscription.__index = Subscription

local function listen(self)
    local block = native.own(self.store)
    if #self.channels > 0 then
        local ok, problem = pcall(native.own_subscribe, block, self.patterns, self.channels)
        if not ok then
            native.own_close(block)
            error(problem, 0)
        end
    end
    self.block = block
end

local function subscribe(store, patterns, ...)
    local channels = {...}
    if #channels == 0 then error("subscribe: a channel is expected", 3) end
    local self = setmetatable({store = store, patterns = patterns, channels = channels}, Subscription)
    listen(self)
    return self
end

function native.redis_methods.subscribe(store, ...) return subscribe(store, false, ...) end
function native.redis_methods.psubscribe(store, ...) return subscribe(store, true, ...) end

-- A message, its channel, and for patterns the one that fits; nil and why there is none.
function Subscription:receive(seconds)
    if self.closed then return nil, "closed" end
    if not self.block then
        local ok, problem = pcall(listen, self)
        if ok then return nil, "reconnected" end
        -- Whoever asks again at once does not keep a worker busy.
        core.msleep(100)
        return nil, problem
    end
    local ok, message = pcall(native.own_message, self.block, seconds)
    if not ok then
        native.own_close(self.block)
        self.block = nil
        return nil, message
    end
    if message == nil then return nil, "timeout" end
    if message[1] == "pmessage" then return message[4], message[3], message[2] end
    return message[3], message[2]
end

function Subscription:close()
    self.closed = true
    if self.block then native.own_close(self.block) end
    self.block = nil
end
Subscription.__close = Subscription.close

local Proxy = {}
Proxy.__index = Proxy

function Proxy:get_name() return self.name end
function Proxy:get_uuid() return self.uuid end
function Proxy:get_cap() return native.proxy(self[1], "cap") end
function Proxy:get_mode() return native.proxy(self[1], "mode") end
function Proxy:get_srv_act() return native.proxy(self[1], "srv_act") end
function Proxy:get_srv_bck() return native.proxy(self[1], "srv_bck") end
function Proxy:get_stats() return native.stats(self[1]) end
function Proxy:get_mailers()
    local mailers, servers = native.mailers(self[1])
    if not mailers then return nil end
    mailers.mailservers = {}
    for at = 1, #servers, 2 do mailers.mailservers[servers[at]] = servers[at + 1] end
    return mailers
end
function Proxy:pause() native.gate(self[1], "pause") end
function Proxy:resume() native.gate(self[1], "resume") end
function Proxy:stop() native.gate(self[1], "stop") end
function Proxy:shut_bcksess() native.shut(self[1]) end

-- Without `option socket-stats` a listener has no counters of its own, and there is nothing to tell.
local Listener = {}
Listener.__index = Listener

function Listener:get_stats() return native.stats(self[1], self[2]) end

-- Stick tables. Field 1 is the table's name.
local StickTable = {}
StickTable.__index = StickTable

-- An entry from its lines.
local function entry_of(text)
    local entry = {}
    for name, value in gmatch(text, "(%S+) ([^\n]*)\n") do
        if byte(value) == 61 then entry[name] = sub(value, 2) else entry[name] = tointeger(value) end
    end
    return entry
end

function StickTable:info()
    local info, data = entry_of(native.table_info(self[1])), {}
    for name, value in pairs(info) do
        local kind = match(name, "^data%.(.*)")
        if kind then
            data[kind] = value
            info[name] = nil
        end
    end
    info.nopurge = info.nopurge ~= 0
    info.data = data
    return info
end

function StickTable:lookup(key)
    local text = native.table_lookup(self[1], key)
    return text and entry_of(text)
end

local OPERATORS = {
    eq = function(one, other) return one == other end,
    ne = function(one, other) return one ~= other end,
    lt = function(one, other) return one < other end,
    gt = function(one, other) return one > other end,
    le = function(one, other) return one <= other end,
    ge = function(one, other) return one >= other end,
}

-- Up to four conditions { column, operator, value }, checked; nil and what is wrong, as HAProxy says it.
local function conditions(self, filter)
    local list, stored = {}, nil
    if filter == nil then return list end
    if type(filter) ~= "table" then return nil, "filter table expected" end
    for _, triplet in pairs(filter) do
        local number = #list + 1
        local function wrong(what) return nil, what .. " (entry #" .. number .. ")" end
        if number > 4 then return nil, "Filter table too large (len > 4)" end
        if type(triplet) ~= "table" or #triplet ~= 3 then
            return wrong('Filter table entry must be a triplet: {"data_col", "op", val}')
        end
        local column, operator, value = triplet[1], triplet[2], triplet[3]
        if type(column) ~= "string" then return wrong("Filter table data column must be string") end
        stored = stored or self:info().data
        if not stored[column] then return wrong("Filter table data column not present in stick table") end
        if type(operator) ~= "string" then return wrong("Filter table operator must be string") end
        if not OPERATORS[operator] then return wrong("Unknown operator in filter table") end
        if not tointeger(value) then return wrong("Filter table value must be integer") end
        list[number] = { column, OPERATORS[operator], tointeger(value) }
    end
    return list
end

-- Calls `f` with key and entry of each that meets all conditions.
local function each(self, list, f)
    local integers = match(native.table_info(self[1]), "^type =(%a+)") == "integer"
    local shard, place = 0, 0
    while shard do
        local text
        text, shard, place = native.table_page(self[1], shard, place)
        local at = 1
        while at <= #text do
            local key, lines
            key, lines, at = string_unpack("<s4s4", text, at)
            local entry, meets = entry_of(lines), true
            for _, condition in ipairs(list) do
                -- The name of a server counts as 0.
                meets = meets and condition[2](tointeger(entry[condition[1]]) or 0, condition[3])
            end
            if meets then f(integers and tointeger(key) or key, entry) end
        end
    end
end

function StickTable:dump(filter)
    local dump, list, wrong = {}, conditions(self, filter)
    if not list then return nil, wrong end
    each(self, list, function(key, entry) dump[key] = entry end)
    return dump
end

-- What HAProxy lacks. `set` makes the entry of a key, if it is not there, and sets data of it; false where the table
-- is full and gives up nothing. `clear` removes the entry of a key, those that meet a filter, or all; false if one stays
-- because it is tracked.
function StickTable:set(key, data)
    local list = {}
    for name, value in pairs(data or {}) do
        list[#list + 1] = name
        list[#list + 1] = value
    end
    local set, wrong = native.table_set(self[1], key, unpack(list))
    if wrong then error(wrong, 2) end
    return set
end

function StickTable:clear(key)
    if key ~= nil and type(key) ~= "table" then return native.table_remove(self[1], key) end
    local all, list, wrong = true, conditions(self, key)
    if not list then return nil, wrong end
    each(self, list, function(found) all = native.table_remove(self[1], found) and all end)
    return all
end

-- Pattern references: the entries of a map or ACL file. What is prepared is gathered in `pending`, keys in their order
-- and values by key, and takes the place of all entries when it is committed.
local Patref = {}
local FILE, PENDING = {}, {}

function Patref:get_name() return rawget(self, FILE) end
function Patref:is_map() return native.pattern_kind(rawget(self, FILE)) end

function Patref:prepare()
    rawset(self, PENDING, { keys = {}, values = {} })
    return true
end

function Patref:giveup() rawset(self, PENDING, nil) end

local function replace(self, keys, values)
    local packed = {}
    for number, key in ipairs(keys) do
        if values[number] ~= nil then packed[#packed + 1] = string_pack("<s4s4", key, values[number]) end
    end
    local wrong = native.pattern_replace(rawget(self, FILE), concat(packed))
    if wrong then return nil, wrong end
    return true
end

function Patref:commit()
    local pending = rawget(self, PENDING)
    if not pending then return nil, "no prepared version" end
    rawset(self, PENDING, nil)
    return replace(self, pending.keys, pending.values)
end

function Patref:purge()
    if rawget(self, PENDING) then return self:prepare() end
    native.pattern_clear(rawget(self, FILE))
    return true
end

function Patref:add(key, value)
    if type(key) ~= "string" then error("a pattern is expected", 2) end
    if self:is_map() then
        if value == nil then error("a map's entry needs a value", 2) end
    else
        value = ""
    end
    local pending = rawget(self, PENDING)
    if pending then
        local number = #pending.keys + 1
        pending.keys[number], pending.values[number] = key, tostring(value)
        return true
    end
    local wrong = native.pattern_add(rawget(self, FILE), key, tostring(value))
    if wrong then return nil, wrong end
    return true
end

-- Maps: values by key. ACLs: a list of patterns, or the patterns as keys.
function Patref:add_bulk(entries)
    if type(entries) ~= "table" then error("a table is expected", 2) end
    local is_map = self:is_map()
    for key, value in pairs(entries) do
        if not is_map and math_type(key) == "integer" and type(value) == "string" then key = value end
        local ok, wrong = self:add(tostring(key), value)
        if not ok then return nil, wrong end
    end
    return true
end

function Patref:del(key)
    local pending, count = rawget(self, PENDING), 0
    if not pending then
        count = native.pattern_del(rawget(self, FILE), key)
    else
        for number, known in ipairs(pending.keys) do
            if known == key and pending.values[number] ~= nil then
                pending.values[number] = nil
                count = count + 1
            end
        end
    end
    if count == 0 then return nil, "entry not found" end
    return true
end

function Patref:set(key, value, force)
    if not self:is_map() then error("only a map's entries have values", 2) end
    local pending, found = rawget(self, PENDING), false
    if not pending then
        local wrong = native.pattern_set(rawget(self, FILE), key, tostring(value), force)
        if wrong then return nil, wrong end
        return true
    end
    for number, known in ipairs(pending.keys) do
        if known == key and pending.values[number] ~= nil then
            pending.values[number] = tostring(value)
            found = true
        end
    end
    if found then return true end
    if force then return self:add(key, value) end
    return nil, "entry not found"
end

function Patref:event_sub(...) return event_sub(rawget(self, FILE), ...) end

-- A reference may also be asked for a pattern and walked: `reference[key]`, `pairs(reference)`.
local PATREF = { __name = "Patref" }

function PATREF.__index(self, key)
    if Patref[key] then return Patref[key] end
    local value = native.pattern_get(rawget(self, FILE), tostring(key))
    if value and not Patref.is_map(self) then return true end
    return value
end

function PATREF.__newindex() error("set or add changes a pattern reference", 2) end

function PATREF.__pairs(self)
    local is_map, from, text, at = Patref.is_map(self), 0, "", 1
    return function()
        while at > #text do
            if not from then return nil end
            text, from = native.pattern_page(rawget(self, FILE), from)
            at = 1
        end
        local key, value
        key, value, at = string_unpack("<s4s4", text, at)
        if not is_map then value = true end
        return key, value
    end, self, nil
end

function core.get_patref(name)
    if native.pattern_kind(name) == nil then error("unknown pattern reference '" .. tostring(name) .. "'", 2) end
    return setmetatable({ [FILE] = name }, PATREF)
end

-- A script may keep these tables before there is anything in them.
core.proxies, core.backends, core.frontends = {}, {}, {}

-- Called once, when the configuration runs: `list` is an array of proxies.
local function publish(list)
    for _, proxy in ipairs(list) do
        proxy.servers = list_of(proxy[1])
        for _, listener in pairs(proxy.listeners) do setmetatable(listener, Listener) end
        if proxy.stktable then setmetatable(proxy.stktable, StickTable) end
        setmetatable(proxy, Proxy)
        core.proxies[proxy.name] = proxy
        if proxy.back then core.backends[proxy.name] = proxy end
        if proxy.front then core.frontends[proxy.name] = proxy end
        proxy.back, proxy.front = nil, nil
    end
end

-- Concat: pieces that are joined when they are wanted.
local Concat = {}
Concat.__index = Concat

function Concat:add(text)
    self[#self + 1] = text_of(text, "add")
end

function Concat:dump()
    return concat(self)
end

function core.concat()
    return setmetatable({}, Concat)
end

-- Queue: values between coroutines of one state.
local Queue = {}
Queue.__index = Queue

function Queue:size()
    return self.last - self.first + 1
end

-- What wakes a coroutine out of core.wait, by coroutine.
local alarms = setmetatable({}, { __mode = "k" })

local function alarm_of_this()
    local thread = coroutine.running()
    local bell = alarms[thread]
    if not bell then
        bell = native.bell()
        alarms[thread] = bell
    end
    return bell
end

function Queue:push(value)
    if value == nil then error("unexpected nil value in push", 2) end
    self.last = self.last + 1
    self.values[self.last] = value
    native.wake(self.bell)
    local waiting = self.alarms
    self.alarms = {}
    for _, bell in ipairs(waiting) do native.wake(bell) end
    return true
end

-- The next push ends a core.wait of this coroutine; set anew for each.
function Queue:alarm()
    local bell = alarm_of_this()
    for _, known in ipairs(self.alarms) do
        if known == bell then return true end
    end
    self.alarms[#self.alarms + 1] = bell
    return true
end

function core.wait(milliseconds)
    native.listen(alarm_of_this(), milliseconds)
end

-- There is nothing to be nice to: workers take turns by what is ready.
function core.set_nice(nice)
    if tointeger(nice) == nil then error("'set_nice' needs an integer", 2) end
end

function Queue:pop()
    if self.first > self.last then return nil end
    local value = self.values[self.first]
    self.values[self.first] = nil
    self.first = self.first + 1
    return value
end

function Queue:pop_wait()
    while self.first > self.last do native.listen(self.bell) end
    return self:pop()
end

function core.queue()
    return setmetatable({ values = {}, first = 1, last = 0, bell = native.bell(), alarms = {} }, Queue)
end

-- HTTP requests of scripts.
local HTTPClient = {}
HTTPClient.__index = HTTPClient

local PARAMETERS = { url = "string", headers = "table", body = "string", dst = "string", timeout = "number" }

for _, method in ipairs({ "get", "head", "put", "post", "delete" }) do
    HTTPClient[method] = function(_, given)
        -- HAProxy's words, which name `get` whatever the method is.
        if type(given) ~= "table" then error("'get' needs a table as argument", 2) end
        for name, value in pairs(given) do
            local kind = PARAMETERS[name]
            if not kind then error("'" .. tostring(name) .. "' invalid parameter name", 2) end
            if type(value) ~= kind then
                local article = kind == "table" and "must be a table" or "must be a " .. kind
                error("invalid parameter in '" .. name .. "', " .. article, 2)
            end
        end
        if not given.url then error("'get' need a 'url' argument", 2) end
        local fields = {}
        for name, values in pairs(given.headers or {}) do
            -- What is no list of values is passed over, as in HAProxy.
            for _, value in pairs(type(values) == "table" and values or {}) do
                fields[#fields + 1] = string_pack("<s4s4", tostring(name), tostring(value))
            end
        end
        local answer, wrong = native.http(
            upper(method), given.url, given.dst, concat(fields), given.body, given.timeout)
        if not answer then error(wrong, 2) end
        return answer
    end
end

function core.httpclient()
    return setmetatable({}, HTTPClient)
end

-- Dates of HTTP (RFC 9110, 5.6.7), as seconds since 1970.
local MONTHS = { Jan = 1, Feb = 2, Mar = 3, Apr = 4, May = 5, Jun = 6, Jul = 7, Aug = 8, Sep = 9, Oct = 10, Nov = 11, Dec = 12 }

local function date(year, month, day, hour, min, sec)
    if not (year and MONTHS[month]) then return nil end
    -- Years begin with March here, so that a leap day is the last one.
    local months = (MONTHS[month] + 9) % 12
    local years = tointeger(year) - months // 10
    local days = 365 * years + years // 4 - years // 100 + years // 400 + (153 * months + 2) // 5 + tointeger(day) - 719469
    return ((days * 24 + tointeger(hour)) * 60 + tointeger(min)) * 60 + tointeger(sec)
end

function core.imf_date(text)
    local day, month, year, hour, min, sec = match(text, "^%a%a%a, (%d%d) (%a%a%a) (%d%d%d%d) (%d%d):(%d%d):(%d%d) GMT$")
    return date(year, month, day, hour, min, sec)
end

function core.rfc850_date(text)
    local day, month, year, hour, min, sec = match(text, "^%a+, (%d%d)%-(%a%a%a)%-(%d%d) (%d%d):(%d%d):(%d%d) GMT$")
    -- Two digits: the last century's from 60 on.
    if year then year = tointeger(year) + (tointeger(year) >= 60 and 1900 or 2000) end
    return date(year, month, day, hour, min, sec)
end

function core.asctime_date(text)
    local month, day, hour, min, sec, year = match(text, "^%a%a%a (%a%a%a) ([ %d]%d) (%d%d):(%d%d):(%d%d) (%d%d%d%d)$")
    return date(year, month, day and gsub(day, " ", ""), hour, min, sec)
end

function core.http_date(text)
    return core.imf_date(text) or core.rfc850_date(text) or core.asctime_date(text)
end

-- LuaSocket's names over the proxy's own sockets: nothing blocks, and scripts that `require "socket"` find these even
-- where LuaSocket is installed.
local function unsupported(module)
    return setmetatable({}, {
        __index = function(_, name)
            error("not available in this host: " .. module .. "." .. tostring(name), 2)
        end,
    })
end

package.preload["socket"] = function()
    local socket = unsupported("socket")
    socket._VERSION = "LuaSocket 3.0 (Sluicegate)"
    socket.gettime = native.gettime
    socket.sleep = native.sleep
    socket.tcp = function() return native.socket() end
    socket.tcp4, socket.tcp6 = socket.tcp, socket.tcp
    socket.connect = function(host, port)
        local client = native.socket()
        local ok, message = client:connect(host, port)
        if ok then return client end
        return nil, message
    end
    socket.connect4, socket.connect6 = socket.connect, socket.connect
    socket.dns = unsupported("socket.dns")
    socket.dns.toip = native.toip
    socket.dns.gethostname = native.hostname
    -- Functions that LuaSocket has for scripts to tell errors from results.
    socket.newtry = function(finalizer)
        return function(ok, ...)
            if ok then return ok, ... end
            if finalizer then finalizer() end
            error({ (...) }, 0)
        end
    end
    socket.try = socket.newtry()
    socket.protect = function(f)
        return function(...)
            local results = pack(pcall(f, ...))
            if results[1] then return unpack(results, 2, results.n) end
            if type(results[2]) == "table" then return nil, results[2][1] end
            error(results[2], 0)
        end
    end
    socket.skip = function(count, ...) return select(count + 1, ...) end
    return socket
end
package.preload["socket.core"] = package.preload["socket"]

package.preload["socket.unix"] = function()
    return function()
        return native.socket("unix")
    end
end

return publish, dispatch
