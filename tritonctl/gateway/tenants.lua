-- SPDX-License-Identifier: Apache-2.0
-- Whose request is this? The tenant whose key file holds the key it brought. Keys come from their
-- files, which are looked at again every few seconds: no configuration ever holds one. The tenant
-- goes into dynamic metadata, which no client can write, and the guard behind this filter lets only
-- requests pass that have one: an error in here closes the gateway, it does not open it.
--
-- To the frontend it says so in headers, over whatever the client wrote there, beside the secret by
-- which the frontend knows this gateway. No other route has the secret.

local FILTER = "tritonctl.tenants"
local READ_AGAIN_SECONDS = 5

local TENANT_HEADER, GATEWAY_HEADER = "x-tritonctl-tenant", "x-tritonctl-gateway"
local REFUSAL = "no such API key: send yours as x-api-key"
local FRONTEND_ONLY = "this key has limits that only the OpenAI API keeps: use /v1"
-- As OpenAI says it.
local REFUSAL_OF_FRONTEND = [[{"error": {"message": "Incorrect API key provided. Send yours as ]]
  .. [[`authorization: Bearer KEY`.", "type": "invalid_request_error", "param": null, ]]
  .. [["code": "invalid_api_key"}}]]

local tenant_of_key = {}
local secret = nil
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
    secret = nil
    read_at = now
  end
  local headers = handle:headers()
  local secret_file = handle:metadata():get("frontend_secret_file")
  local key = key_of(headers)
  local tenant = key and tenant_of_key[key]
  if tenant == nil then
    if secret_file == nil then
      handle:respond({[":status"] = "401"}, REFUSAL)
    else
      handle:respond(
        {[":status"] = "401", ["content-type"] = "application/json"}, REFUSAL_OF_FRONTEND
      )
    end
    return
  end
  local frontend_only = handle:metadata():get("frontend_only")
  if frontend_only ~= nil and frontend_only[tenant] then
    handle:respond({[":status"] = "403"}, FRONTEND_ONLY)
    return
  end
  headers:remove("x-api-key")
  headers:remove("authorization")
  headers:remove(TENANT_HEADER)
  headers:remove(GATEWAY_HEADER)
  if secret_file ~= nil then
    secret = secret or key_in(secret_file) or ""
    headers:replace(TENANT_HEADER, tenant)
    headers:replace(GATEWAY_HEADER, secret)
  end
  handle:streamInfo():dynamicMetadata():set(FILTER, "tenant", tenant)
end
