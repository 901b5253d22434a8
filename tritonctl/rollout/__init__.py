# SPDX-License-Identifier: Apache-2.0
"""A new version beside the old one: is it worse? Judged every second, and written down.

The controller holds `journal.controlling`. For each step of `rollout.steps` of the project file
it adds `Event.STEP` to the journal, calls `Traffic.move` and `Judge.begin_step`; once a second it
makes a `metrics.Scrape` of both versions' counters, hands it to `Judge.observe`, adds the decision
to the journal, and does what its `standing` says. After a crash, `journal.replay` says where it
stood, and `evidence` what the judge knew.

    controller   what is done each second, and after a crash; supervise starts it again
    asks         what people want of it: files
    scraping     both versions' metrics and the gateway's, side by side; counting makes counters
    standing     where a rollout stands by its files; page has every decision
    traffic      which users the candidate has: Envoy's routes, moved in one rename
    sequential   bets against "no worse", of failures, times, answers, memory
    metrics      what a scrape holds, and what happened between two
    presence     which version is heard of; a scrape that stays away is a fault
    judge        one decision for each scrape, with its figures
    journal      what was decided and done, one line each, and the lock of the one controller
    differences  how far two answers are apart; `distances` makes what a scrape's `answers` are
    compare      the same offline, over a file of questions: asking, compare, comparison_page

Time is the caller's everywhere.
"""
