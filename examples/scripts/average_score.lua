--!df flags=disable-atomicity,allow-undeclared-keys
-- Goes through all keys that match ARGV[1], hashes of users, and returns how many have a field `score`, and its average
-- as text.
--
-- It is not atomic: others read and write the users meanwhile, and one that changes is counted as it is found. To Redis
-- the first line is a comment, and there everybody waits for the end.
local cursor, users, sum = '0', {}, 0
repeat
  local reply = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 100)
  cursor = reply[1]
  for _, key in ipairs(reply[2]) do
    -- SCAN may name a key twice.
    if not users[key] then
      local score = redis.call('HGET', key, 'score')
      if score then
        users[key] = true
        users[#users + 1] = key
        sum = sum + tonumber(score)
      end
    end
  end
until cursor == '0'
if #users == 0 then
  return {0, '0'}
end
return {#users, string.format('%.2f', sum / #users)}
