# SPDX-License-Identifier: Apache-2.0
"""Vercel's AI SDK, whose OpenAI provider uses /v1/responses, against a real Triton."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.typescript import TypeScript

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

PACKAGES = ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4.6.7")
PROGRAM = """
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const facts = FACTS;
const options = { baseURL: facts.url, apiKey: 'none' };
const speller = createOpenAI(options)(facts.speller);
// The seed chooses what the scripted model says; the SDK has no setting for it.
const seeded: typeof fetch = (url, init) =>
  fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init?.body as string), seed: 0 }) });
const scripted = createOpenAI({ ...options, fetch: seeded })(facts.tools);
const prompt: string = facts.message;
const providerOptions = { openai: { store: false } };

const whole = await generateText({ model: speller, prompt });
const stream = streamText({ model: speller, prompt });
let streamed = '';
for await (const piece of stream.textStream) streamed += piece;
const cut = await generateText({ model: speller, prompt, maxOutputTokens: 2 });
const person = z.object({ name: z.enum(['Ada', 'Grace']), age: z.literal([36, 85]) });
const output = Output.object({ schema: person });
const typed = await generateText({ model: speller, prompt, output });

const numbers: number[] = [];
const spell = tool({
  description: 'Spells a number',
  inputSchema: z.object({ number: z.number().int() }),
  execute: async ({ number }) => { numbers.push(number); return 'seven'; },
});
const agent = { model: scripted, prompt, tools: { spell }, stopWhen: stepCountIs(2) };
const steps = await generateText({ ...agent, providerOptions });
const agentStream = streamText({ ...agent, providerOptions });
const parts: string[] = [];
for await (const part of agentStream.fullStream) parts.push(part.type);
const question = { role: 'user' as const, content: prompt };
const messages = [question, ...whole.response.messages, question];
const second = await generateText({ model: speller, messages, providerOptions });
let refusal = '';
try { await generateText({ model: speller, messages }); } catch (error) { refusal = String(error); }

console.log(JSON.stringify({
  whole: whole.text, streamed, usage: [whole.usage.inputTokens, whole.usage.outputTokens],
  finished: [whole.finishReason, await stream.finishReason, cut.finishReason],
  typed: person.safeParse(typed.output).success, numbers,
  steps: steps.steps.map((step) => step.finishReason), failed: parts.includes('error'),
  second: second.text, refusal,
}));
"""


def test_the_ai_sdk(served: dict[str, Any], tmp_path: Path) -> None:
    """Texts, streams, typed answers and agents; without `store: false` it is told to send items."""
    sdk = TypeScript(tmp_path, *PACKAGES)
    names = ("url", "speller", "tools", "message")
    program = PROGRAM.replace("FACTS", json.dumps({name: served[name] for name in names}))
    assert not sdk.problems(program)
    said = json.loads(sdk.output().splitlines()[-1])
    assert (said["whole"], said["streamed"]) == (served["message_answer"],) * 2
    assert said["usage"] == served["message_tokens"]
    assert said["finished"] == ["stop", "stop", "length"]
    assert said["typed"] is True
    assert said["steps"] == ["tool-calls", "tool-calls"]
    assert said["numbers"] == [7342] * 4
    assert said["second"]
    assert said["failed"] is False
    assert "providerOptions: {openai: {store: false}}" in said["refusal"]
