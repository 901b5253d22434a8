-- SPDX-License-Identifier: Apache-2.0
-- Ask Triton every few seconds which models and versions it serves, before a stream starts, and hand
-- the answer to served_models.lua. That script reads the stream and cannot wait for an answer: Envoy
-- lets a script read a body in pieces only if it has not waited for anything before.

local FILTER = "tritonctl.served_models"
local STATISTICS = "/v2/models/stats"
local READ_AGAIN_SECONDS, TIMEOUT_MS = 2, 1000

local asked = {} -- by cluster: the time of the last request
local answered = {} -- by cluster: whether there ever was an answer

local function names_in(text)
  local models = {}
  for name, version in text:gmatch('"name":"([^"]*)","version":"([^"]*)"') do
    models[name] = models[name] or {}
    models[name][version] = true
  end
  return models
end

function envoy_on_request(handle)
  local now = os.time()
  for _, cluster in ipairs(handle:metadata():get("clusters") or {}) do
    local last = asked[cluster]
    if not answered[cluster] or now < last or now - last >= READ_AGAIN_SECONDS then
      asked[cluster] = now -- others go on with what is known
      local request = {[":method"] = "GET", [":path"] = STATISTICS, [":authority"] = "triton"}
      local headers, body = handle:httpCall(cluster, request, "", TIMEOUT_MS)
      if headers[":status"] == "200" and body ~= nil then
        answered[cluster] = true
        handle:streamInfo():dynamicMetadata():set(FILTER, cluster, names_in(body))
      end
    end
  end
end
