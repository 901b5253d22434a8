-- SPDX-License-Identifier: Apache-2.0
-- Whose request is this? The tenant whose key file holds the key it brought. Keys come from their
-- files, which are looked at again every few seconds: no configuration ever holds one. The tenant
-- goes into dynamic metadata, which no client can write, and the guard behind this filter lets only
-- requests pass that have one: an error in here closes the gateway, it does not open it.

local FILTER = "tritonctl.tenants"
local READ_AGAIN_SECONDS = 5

local tenant_of_key = {}
local read_at = nil

local function key_in(path)
  local file = io.open(path, "r")
  if file == nil then
    return nil
  end
  local line = file:read("*l") or ""
  file:close()
  return line:match("^%s*(.-)%s*$")
end

local function read_keys(paths)
  local found = {}
  for tenant, path in pairs(paths) do
    local key = key_in(path)
    if key ~= nil and key ~= "" then
      found[key] = tenant
    end
  end
  return found
end

local function key_of(headers)
  local key = headers:get("x-api-key")
  if key == nil then
    local authorization = headers:get("authorization") or ""
    key = authorization:match("^[Bb]earer%s+(%S+)%s*$")
  end
  return key
end

function envoy_on_request(handle)
  local now = os.time()
  if read_at == nil or now - read_at >= READ_AGAIN_SECONDS or now < read_at then
    tenant_of_key = read_keys(handle:metadata():get("api_key_files"))
    read_at = now
  end
  local headers = handle:headers()
  local key = key_of(headers)
  local tenant = key and tenant_of_key[key]
  if tenant == nil then
    handle:respond({[":status"] = "401"}, "no such API key: send yours as x-api-key")
    return
  end
  headers:remove("x-api-key")
  headers:remove("authorization")
  handle:streamInfo():dynamicMetadata():set(FILTER, "tenant", tenant)
end
