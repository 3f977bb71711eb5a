-- Pushes every message of the JSON array ARGV[1] to all lists in KEYS, of which each keeps its newest ARGV[2] elements.
local messages = cjson.decode(ARGV[1])
local newest = tonumber(ARGV[2]) - 1
for _, key in ipairs(KEYS) do
  for _, message in ipairs(messages) do
    redis.call('LPUSH', key, message)
  end
  redis.call('LTRIM', key, 0, newest)
end
return #messages * #KEYS
