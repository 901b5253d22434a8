# SPDX-License-Identifier: Apache-2.0
"""Roll out a candidate release next to stable: judge it every second and journal each decision.

The controller holds `journal.open_journal`. For each step of `rollout.steps` in the project file it
adds `JournalEvent.STEP` to the journal and calls `Traffic.move` and `Judge.begin_step`. Once a
second it scrapes the counters of both versions (`metrics.Scrape`), passes them to `Judge.observe`,
journals the decision and acts on its `status`. After a crash, `journal.replay` restores the state
of the rollout and `evidence` that of the judge.

    controller          the loop of each second, and recovery; supervise restarts it
    operator_commands   commands for the controller, as files; steering sends them
    scraping            metrics of both versions and of the gateway; counting makes counters
    status              the state of a rollout from its files; page lists every decision
    traffic             the users of the candidate: Envoy's routes, replaced in one rename
    sequential          tests against "no worse" for failures, times, answers, memory
    metrics             one scrape, and the interval between two
    scrape_health       missing scrapes and stalled metrics
    judge               one decision for each scrape, with its figures
    journal             decisions and actions, one line each, and the controller's lock
    differences         distances between answers
    compare             offline comparison over a file of prompts: replay_prompts, comparison_page

The caller passes the time everywhere.
"""
