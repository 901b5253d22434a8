-- SPDX-License-Identifier: Apache-2.0
-- Refuse models and versions on a stream that the servers do not serve: tritonserver 2.51 crashes on
-- them (the writes of two responses overlap), and one client could stop every model of a server.
--
-- A stream carries any number of gRPC messages, so the script reads the fields model_name and
-- model_version of each ModelInferRequest (grpc_predict_v2.proto). Every serialiser writes
-- model_name first. The rest of a refused message becomes 0xFF, which no protobuf parser accepts:
-- Triton then reads no more of this stream and finishes the answers before it. The client gets
-- NOT_FOUND at the end of its stream.
--
-- model_names.lua brings the names. Without them, and if this script fails, the guard behind it lets
-- no stream pass.

local FILTER = "tritonctl.served_models"
local MAX_NAME_BYTES, MAX_SHOWN_BYTES = 1024, 80
local NOT_FOUND, UNIMPLEMENTED, UNAVAILABLE = "5", "12", "14"
local NAME_FIELD, VERSION_FIELD = 1, 2
local CHECKED, REFUSAL = "checked", "refusal"
local VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

local tables = {} -- by cluster: {name = {version = true}}

local function is_served(model_tables, name, version)
  for _, models in ipairs(model_tables) do
    local versions = models[name]
    if versions == nil or (version ~= "" and not versions[version]) then
      return false
    end
  end
  return true
end

-- The state of one request: `left` bytes of the current message, of which `skip` need no look and
-- `spoil` are overwritten; `held` bytes whose field has not arrived completely.
local function new_reader(model_tables)
  return {tables = model_tables, held = "", in_message = false, left = 0, skip = 0, spoil = 0}
end

-- The varint at `at` and the position behind it; nil if it is not complete, 0 if it is too long.
local function varint(text, at)
  local value, factor = 0, 1
  for position = at, at + 4 do
    local byte = text:byte(position)
    if byte == nil then
      return nil
    end
    value = value + (byte % 128) * factor
    if byte < 128 then
      return value, position + 1
    end
    factor = factor * 128
  end
  return 0, 0
end

local function refuse(reader, reason)
  reader.refusal = reader.refusal or reason
  reader.spoil = reader.left
end

local function check_name(reader, field, value)
  if field == NAME_FIELD then
    reader.name = value
  else
    reader.version = value
  end
  if not is_served(reader.tables, reader.name, reader.version) then
    local version = reader.version ~= "" and " version " .. reader.version or ""
    local name = (reader.name .. version):sub(1, MAX_SHOWN_BYTES):gsub("[^%w_.%- ]", "?")
    refuse(reader, "model " .. name .. " is not served here")
  end
end

-- Check the field at `at`: skip it, or refuse the message; neither if it is not complete.
local function read_field(reader, text, at)
  local tag, behind = varint(text, at)
  if tag == nil then
    return
  end
  local field, kind = math.floor(tag / 8), tag % 8
  local length = ({[FIXED64] = 8, [FIXED32] = 4})[kind]
  if kind == BYTES or kind == VARINT then
    local value, start = varint(text, behind)
    if kind == VARINT then -- of up to ten bytes
      local last = text:find("[%z\1-\127]", behind)
      if last == nil then
        return
      end
      length = last - behind + 1
    elseif value == nil then
      return
    elseif start ~= 0 then
      length, behind = value, start
    end
  end
  if behind == 0 or length == nil or behind - at + length > reader.left then
    return refuse(reader, "malformed message")
  end
  if reader.name == nil and field ~= NAME_FIELD then
    return refuse(reader, "model_name is missing, or not the first field")
  end
  if field == NAME_FIELD or field == VERSION_FIELD then
    if kind ~= BYTES or length > MAX_NAME_BYTES then
      return refuse(reader, "model_name or model_version is too long")
    end
    if #text < behind + length - 1 then
      return
    end
    check_name(reader, field, text:sub(behind, behind + length - 1))
    if reader.refusal ~= nil then
      return
    end
  end
  reader.skip = behind - at + length
end

-- The bytes to pass on in place of `data`.
local function read(reader, data)
  if reader.done then
    return ""
  end
  local text = reader.held .. data
  local at, copied, pieces = 1, 1, {}
  while at <= #text do
    if reader.spoil > 0 or reader.skip > 0 then
      local count = math.min(math.max(reader.spoil, reader.skip), #text - at + 1)
      if reader.spoil > 0 then
        pieces[#pieces + 1] = text:sub(copied, at - 1) .. string.rep("\255", count)
        copied, reader.spoil = at + count, reader.spoil - count
      else
        reader.skip = reader.skip - count
      end
      at, reader.left = at + count, reader.left - count
    elseif reader.in_message and reader.left > 0 then
      read_field(reader, text, at)
      if reader.spoil == 0 and reader.skip == 0 then
        if #text - at + 1 < reader.left then
          break -- until more has arrived
        end
        refuse(reader, "malformed message")
      end
    elseif reader.in_message then
      reader.in_message = false
      if reader.refusal ~= nil then
        reader.done = true
        reader.held = ""
        return table.concat(pieces)
      end
    else
      if #text - at + 1 < 5 then
        break
      end
      local flag, a, b, c, d = text:byte(at, at + 4)
      reader.in_message, reader.name, reader.version = true, nil, ""
      reader.left = ((a * 256 + b) * 256 + c) * 256 + d
      if reader.left == 0 then -- a message without a name; one byte makes it unreadable
        pieces[#pieces + 1] = text:sub(copied, at - 1) .. "\0\0\0\0\1\255"
        copied = at + 5
        refuse(reader, "model_name is missing")
      elseif flag ~= 0 then
        refuse(reader, "compressed messages are not accepted")
      end
      at = at + 5
    end
  end
  if reader.in_message and reader.left == 0 then
    reader.in_message = false
    reader.done = reader.refusal ~= nil
  end
  pieces[#pieces + 1] = text:sub(copied, at - 1)
  reader.held = text:sub(at)
  return table.concat(pieces)
end

local function respond(handle, status, message, headers)
  local answer = {[":status"] = "200", ["content-type"] = "application/grpc"}
  answer["grpc-status"], answer["grpc-message"] = status, message
  for name, value in pairs(headers or {}) do
    answer[name] = value
  end
  handle:respond(answer, "")
end

local function filter(handle, reader, chunk)
  local size = chunk:length()
  if reader.skip >= size and not reader.done then
    reader.skip, reader.left = reader.skip - size, reader.left - size
    return
  end
  local data = chunk:getBytes(0, size)
  local passed = read(reader, data)
  if passed ~= data then
    chunk:setBytes(passed)
  end
  if reader.refusal ~= nil and not reader.told then
    reader.told = true
    handle:streamInfo():dynamicMetadata():set(FILTER, REFUSAL, reader.refusal)
  end
end

function envoy_on_request(handle)
  local clusters = handle:metadata():get("clusters")
  if clusters == nil then
    return
  end
  local encoding = handle:headers():get("grpc-encoding")
  if encoding ~= nil and encoding ~= "identity" then
    respond(handle, UNIMPLEMENTED, "streams through the gateway must not be compressed",
      {["grpc-accept-encoding"] = "identity"})
    return
  end
  local model_tables = {}
  -- Envoy's objects must be fetched again after each chunk.
  local state = handle:streamInfo():dynamicMetadata()
  local news = state:get(FILTER) or {}
  for _, cluster in ipairs(clusters) do
    tables[cluster] = news[cluster] or tables[cluster]
    model_tables[#model_tables + 1] = tables[cluster]
  end
  if #model_tables == 0 then
    respond(handle, UNAVAILABLE, "no healthy upstream") -- in Envoy's own words
    return
  end
  state:set(FILTER, CHECKED, CHECKED)
  local reader = new_reader(model_tables)
  for chunk in handle:bodyChunks() do
    local is_read, problem = pcall(filter, handle, reader, chunk)
    if not is_read then -- without this, Envoy would pass the rest of the stream
      handle:logErr("the gateway cannot read a stream: " .. tostring(problem))
      reader.done = true
      chunk:setBytes("")
    end
  end
end

local function replace_status(handle, fields)
  local state = handle:streamInfo():dynamicMetadata():get(FILTER)
  if state ~= nil and state[REFUSAL] ~= nil and fields ~= nil then
    fields:replace("grpc-status", NOT_FOUND)
    fields:replace("grpc-message", state[REFUSAL])
  end
end

function envoy_on_response(handle)
  if handle:metadata():get("clusters") == nil then
    return
  end
  if handle:headers():get("grpc-status") ~= nil then -- without a body
    replace_status(handle, handle:headers())
  else
    replace_status(handle, handle:trailers())
  end
end
