-- The standard library's functions for what is large, and for what runs functions of the script in between.
--
-- Lua's own functions can't be suspended. What takes long in one of them, and what calls a metamethod, is done here
-- instead: in Lua, which is suspended between any two instructions. Arguments have been checked by the caller; what Lua
-- would refuse never comes here.

local lua, pending = ...

local concat, unpack, pack = lua.concat, lua.unpack, lua.pack
local format, gmatch, sub, byte = lua.format, lua.gmatch, lua.sub, lua.byte
local upper, lower, reverse = lua.upper, lua.lower, lua.reverse
local utf8len, print, tostring = lua.utf8len, lua.print, lua.tostring
local collectgarbage, getmetatable = lua.collectgarbage, lua.getmetatable
local rawget, select, type, pcall, error = lua.rawget, lua.select, lua.type, lua.pcall, lua.error
local load_text, maxinteger = lua.load_text, lua.math.maxinteger

-- Bytes and elements handled without a pause.
local BYTES <const> = 65536
local ELEMENTS <const> = 4096

local slow = {}

function slow.index(t, key)
  return t[key]
end

local function in_pieces(convert)
  return function(s)
    local parts = {}
    for at = 1, #s, BYTES do
      parts[#parts + 1] = convert(sub(s, at, at + BYTES - 1))
    end
    return concat(parts)
  end
end

slow.upper = in_pieces(upper)
slow.lower = in_pieces(lower)

function slow.reverse(s)
  local parts = {}
  for at = #s, 1, -BYTES do
    parts[#parts + 1] = reverse(sub(s, at < BYTES and 1 or at - BYTES + 1, at))
  end
  return concat(parts)
end

local function is_continuation(b)
  return b ~= nil and b & 0xC0 == 0x80
end

function slow.utf8len(s, i, j, lax)
  i = i or 1
  j = j or -1
  if i < 0 then i = #s + i + 1 end
  if j < 0 then j = #s + j + 1 end
  if i < 1 or i > #s + 1 or j > #s then
    return utf8len(s, i, j, lax)
  end
  local count = 0
  while i <= j do
    local last = j - i < BYTES and j or i + BYTES - 1
    local some, at = utf8len(s, i, last, lax)
    if not some then
      return some, at
    end
    count = count + some
    i = last + 1
    -- The last one that begins in a piece may end in the next.
    while i <= j and is_continuation(byte(s, i)) do
      i = i + 1
    end
  end
  return count
end

local function text(value)
  local meta = getmetatable(value)
  local convert = meta and rawget(meta, "__tostring")
  if convert == nil then
    return tostring(value)
  end
  local result = convert(value)
  if type(result) == "number" then
    return tostring(result)
  elseif type(result) ~= "string" then
    error("'__tostring' must return a string", 4)
  end
  return result
end

function slow.tostring(value)
  local result = text(value)
  return result
end

function slow.print(...)
  local values = pack(...)
  for n = 1, values.n do
    values[n] = text(values[n])
  end
  print(unpack(values, 1, values.n))
end

function slow.format(template, ...)
  local values, n = pack(...), 0
  for _, letter in gmatch(template, "%%([^%a%%]*)(.)") do
    if letter ~= "%" then
      n = n + 1
      if letter == "s" and n <= values.n and type(values[n]) ~= "string" and type(values[n]) ~= "number" then
        values[n] = text(values[n])
      end
    end
  end
  return format(template, unpack(values, 1, values.n))
end

function slow.load(reader, name, mode, ...)
  local parts = {}
  while true do
    local ok, part = pcall(reader)
    if not ok then
      return nil, part
    elseif part == nil or part == "" then
      break
    elseif type(part) == "number" then
      part = tostring(part)
    elseif type(part) ~= "string" then
      return nil, "reader function must return a string"
    end
    parts[#parts + 1] = part
  end
  return load_text(concat(parts), name or "=(load)", mode, ...)
end

function slow.concat(t, separator, i, j)
  i = i or 1
  j = j or #t
  if i > j then
    return ""
  end
  local parts, is_plain = {}, getmetatable(t) == nil
  while true do
    local last = (i > 0 or j < i + maxinteger) and j - i < ELEMENTS and j or i + ELEMENTS - 1
    local piece = t
    if not is_plain then
      piece = {}
      for at = i, last do
        piece[at] = t[at]
      end
    end
    parts[#parts + 1] = concat(piece, separator, i, last)
    if last == j then
      return concat(parts, separator)
    end
    i = last + 1
  end
end

function slow.insert(t, ...)
  local last = #t + 1
  if select("#", ...) == 1 then
    t[last] = ...
    return
  end
  local place, value = ...
  if place < 1 or place > last then
    error("bad argument #2 to 'insert' (position out of bounds)", 3)
  end
  for at = last, place + 1, -1 do
    t[at] = t[at - 1]
  end
  t[place] = value
end

function slow.remove(t, place)
  local size = #t
  place = place or size
  if place ~= size and (place < 1 or place > size + 1) then
    error("bad argument #2 to 'remove' (position out of bounds)", 3)
  end
  local value = t[place]
  while place < size do
    t[place] = t[place + 1]
    place = place + 1
  end
  t[place] = nil
  return value
end

function slow.move(from, first, last, place, to)
  to = to or from
  if last >= first then
    if not (first > 0 or last < maxinteger + first) then
      error("bad argument #3 to 'move' (too many elements to move)", 3)
    elseif place > maxinteger - (last - first + 1) + 1 then
      error("bad argument #4 to 'move' (destination wrap around)", 3)
    elseif place > last or place <= first or to ~= from then
      for n = 0, last - first do
        to[place + n] = from[first + n]
      end
    else
      for n = last - first, 0, -1 do
        to[place + n] = from[first + n]
      end
    end
  end
  return to
end

function slow.unpack(t, i, j)
  i = i or 1
  j = j or #t
  local copy = {}
  if i <= j then
    if j - i < 0 or j - i >= 1000000 then
      error("too many results to unpack", 3)
    end
    for at = i, j do
      copy[at] = t[at]
    end
  end
  return unpack(copy, i, j)
end

local function less(a, b)
  return a < b
end

-- A quicksort whose pivot is the middle one of three; the smaller part is sorted first.
local function sort(t, first, last, before)
  while first < last do
    local middle = first + (last - first) // 2
    local a, b, c = t[first], t[middle], t[last]
    if before(c, a) then a, c = c, a end
    if before(b, a) then
      a, b = b, a
    elseif before(c, b) then
      b, c = c, b
    end
    t[first], t[middle], t[last] = a, b, c
    if last - first < 3 then
      return
    end
    local pivot = b
    t[middle], t[last - 1] = t[last - 1], pivot
    local i, j = first, last - 1
    while true do
      i = i + 1
      local low = t[i]
      while before(low, pivot) do
        if i >= last - 1 then
          error("invalid order function for sorting", 0)
        end
        i = i + 1
        low = t[i]
      end
      j = j - 1
      local high = t[j]
      while before(pivot, high) do
        if j < i then
          error("invalid order function for sorting", 0)
        end
        j = j - 1
        high = t[j]
      end
      if j < i then
        break
      end
      t[i], t[j] = high, low
    end
    t[last - 1], t[i] = t[i], pivot
    if i - first < last - i then
      sort(t, first, i - 1, before)
      first = i + 1
    else
      sort(t, i + 1, last, before)
      last = i - 1
    end
  end
end

function slow.sort(t, before)
  sort(t, 1, #t, before or less)
end

-- Objects whose finalizer is due stand in `pending` from `first` to `pending[0]`.
local first = 1

function slow.finalize()
  while first <= pending[0] do
    local object = pending[first]
    pending[first] = nil
    first = first + 1
    local meta = getmetatable(object)
    local finalizer = meta and rawget(meta, "__gc")
    if finalizer ~= nil then
      pcall(finalizer, object)
    end
  end
end

local mode = "incremental"

function slow.collectgarbage(what, ...)
  if what == "step" then
    local kilobytes = ...
    while kilobytes > 0 do
      if collectgarbage("step", kilobytes < 64 and kilobytes or 64) then
        return true
      end
      kilobytes = kilobytes - 64
    end
    return false
  elseif what == "generational" then
    -- A young collection can't be suspended, so that mode has its name alone.
    local before = mode
    mode = what
    return before
  elseif what == "incremental" then
    local before, pause, multiplier, size = mode, ...
    mode = what
    collectgarbage("incremental", pause or 0, multiplier or 0, size and size > 15 and 15 or size or 0)
    return before
  end
  -- What is garbage now is so at the beginning of the next cycle, and is gone at its end.
  for _ = 1, 2 do
    repeat until collectgarbage("step", 0)
  end
  slow.finalize()
  return 0
end

return slow
