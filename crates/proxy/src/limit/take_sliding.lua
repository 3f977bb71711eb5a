local count, part, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local slots = 20
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local start, counts, used = now - now % part, {}, 0
for index = 0, slots do counts[index] = 0 end
local stored = redis.call('GET', KEYS[1])
if stored then
  local at, list = string.match(stored, '^(%d+):([%d,]+)$')
  if not at then return redis.error_reply('ERR the key holds no limit of this kind') end
  local passed = 0
  if start > tonumber(at) then passed = math.floor((start - at) / part) else start = tonumber(at) end
  for number in string.gmatch(list, '%d+') do
    if passed <= slots then
      counts[passed] = tonumber(number)
      used = used + number
    end
    passed = passed + 1
  end
end
local function forgotten(index) return start + (slots + 1 - index) * part - now end
local allowed = used + cost <= count or cost == 0
local retry = 0
if allowed then
  counts[0], used = counts[0] + cost, used + cost
elseif cost > count then
  retry = -1
else
  local missing = used + cost - count
  for index = slots, 0, -1 do
    missing = missing - counts[index]
    if missing <= 0 then
      retry = forgotten(index)
      break
    end
  end
end
local reset, last = 0, 0
for index = slots, 0, -1 do
  if counts[index] > 0 then
    reset = forgotten(index)
    if last == 0 then last = index end
  end
end
if allowed and cost > 0 then
  local numbers = {}
  for index = 0, last do numbers[index + 1] = string.format('%.0f', counts[index]) end
  local value = string.format('%.0f:', start) .. table.concat(numbers, ',')
  redis.call('SET', KEYS[1], value, 'PX', math.ceil(reset / 1000) + 1)
end
return {allowed and 1 or 0, math.max(0, count - used), retry, reset}
