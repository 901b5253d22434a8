-- SPDX-License-Identifier: Apache-2.0
-- A tenant's account in Redis: the rules of ledger.py, each operation one atomic script.
--
-- KEYS: 1  JSON: `slots`, a list of {second, tokens, requests} in order of time; `held`, tokens
--       2  hash: by grant, the tokens that it may still use
--       3  sorted set: by grant, when its lease ends, in ms
-- ARGV: operation, now in ms (empty: this server's clock, the same for all frontends),
--       the length of a minute and of a lease in ms, then what the operation takes.
-- Answer: limit that refuses or "", tokens used, tokens held, requests, requests under way, ms until
-- used tokens and requests are all gone, ms until the request would fit.
--
-- A frontend that died renews no lease. What it held then counts as used, all of it, from the lease's
-- end: it may have been. A minute later it is gone.

local SLOT = 1000
local operation = ARGV[1]
local now = tonumber(ARGV[2])
local MINUTE, LEASE = tonumber(ARGV[3]), tonumber(ARGV[4])

if now == nil then
  local time = redis.call("TIME")
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local this_second = math.floor(now / SLOT)
local account = { slots = {}, held = 0 }

local function until_ms(second)
  return (second + 1) * SLOT + MINUTE
end

local function count(second, tokens, requests)
  if until_ms(second) <= now then
    return
  end
  local slots = account.slots
  local at = #slots
  while at > 0 and slots[at][1] > second do
    at = at - 1
  end
  if at > 0 and slots[at][1] == second then
    slots[at][2] = slots[at][2] + tokens
    slots[at][3] = slots[at][3] + requests
  else
    table.insert(slots, at + 1, { second, tokens, requests })
  end
end

local function read()
  local text = redis.call("GET", KEYS[1])
  if not text then
    return
  end
  local stored = cjson.decode(text)
  account.held = stored.held
  for _, slot in ipairs(stored.slots) do
    -- A clock that was set back: what lies ahead of it happened before now.
    count(math.min(slot[1], this_second), slot[2], slot[3])
  end
end

local function end_leases()
  for _, grant in ipairs(redis.call("ZRANGEBYSCORE", KEYS[3], now + LEASE + 1, "+inf")) do
    redis.call("ZADD", KEYS[3], now + LEASE, grant) -- same: none ends later
  end
  local ended = redis.call("ZRANGEBYSCORE", KEYS[3], "-inf", now, "WITHSCORES")
  for at = 1, #ended, 2 do
    local left = tonumber(redis.call("HGET", KEYS[2], ended[at])) or 0
    account.held = account.held - left
    count(math.floor(tonumber(ended[at + 1]) / SLOT), left, 0)
    redis.call("HDEL", KEYS[2], ended[at])
    redis.call("ZREM", KEYS[3], ended[at])
  end
end

local function write()
  local kept = 2 * (MINUTE + LEASE)
  redis.call("SET", KEYS[1], cjson.encode(account), "PX", kept)
  redis.call("PEXPIRE", KEYS[2], kept)
  redis.call("PEXPIRE", KEYS[3], kept)
end

local function total(column)
  local sum = 0
  for _, slot in ipairs(account.slots) do
    sum = sum + slot[column]
  end
  return sum
end

local function until_gone(column, amount)
  for _, slot in ipairs(account.slots) do
    amount = amount - slot[column]
    if amount <= 0 then
      return until_ms(slot[1]) - now
    end
  end
  return SLOT
end

local function until_empty(column)
  for at = #account.slots, 1, -1 do
    if account.slots[at][column] > 0 then
      return until_ms(account.slots[at][1]) - now
    end
  end
  return 0
end

local function hold(grant, tokens)
  redis.call("HSET", KEYS[2], grant, tokens)
  redis.call("ZADD", KEYS[3], now + LEASE, grant)
end

local function refusal(tokens, most_requests, most_tokens, most_under_way)
  if most_tokens then
    if tokens > most_tokens then
      return "size", 0
    end
    local excess = total(2) + account.held + tokens - most_tokens
    if excess > 0 then
      return "tokens", until_gone(2, excess)
    end
  end
  local requests = total(3)
  if most_requests and requests >= most_requests then
    return "requests", until_gone(3, requests + 1 - most_requests)
  end
  if most_under_way and redis.call("HLEN", KEYS[2]) >= most_under_way then
    return "concurrency", SLOT
  end
  return "", 0
end

-- grant, tokens, then requests and tokens a minute and requests under way at most: empty for no limit
local function reserve()
  local grant, tokens = ARGV[5], tonumber(ARGV[6])
  if redis.call("HEXISTS", KEYS[2], grant) == 1 then
    return "", 0
  end
  local over, retry = refusal(tokens, tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]))
  if over == "" then
    account.held = account.held + tokens
    count(this_second, 0, 1)
    hold(grant, tokens)
  end
  return over, retry
end

-- grant, reserved, used so far; of as many as there are. One that is not known (its lease has ended,
-- or this server has lost its data) holds again what it may still use.
local function renew()
  for at = 5, #ARGV, 3 do
    local grant, reserved = ARGV[at], tonumber(ARGV[at + 1])
    local after = reserved - math.min(tonumber(ARGV[at + 2]), reserved)
    local before = tonumber(redis.call("HGET", KEYS[2], grant))
    if before == nil then
      account.held = account.held + after
      hold(grant, after)
    else
      after = math.min(before, after)
      account.held = account.held - (before - after)
      count(this_second, before - after, 0)
      hold(grant, after)
    end
  end
end

-- grant, reserved, used. One that is not known was counted in full when its lease ended.
local function settle()
  local grant, reserved, used = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
  local left = tonumber(redis.call("HGET", KEYS[2], grant))
  if left then
    account.held = account.held - left
    count(this_second, math.max(0, used - (reserved - left)), 0)
    redis.call("HDEL", KEYS[2], grant)
    redis.call("ZREM", KEYS[3], grant)
  end
end

read()
end_leases()
local over, retry = ({ reserve = reserve, renew = renew, settle = settle })[operation]()
write()
local reset_tokens = until_empty(2)
if account.held > 0 then
  reset_tokens = math.max(reset_tokens, MINUTE)
end
return {
  over or "", total(2), account.held, total(3), redis.call("HLEN", KEYS[2]),
  reset_tokens, until_empty(3), retry or 0,
}
