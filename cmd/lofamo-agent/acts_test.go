package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
)

// People can read the ledger. A node without actions has an empty one, and the error for an unreadable one names the
// file.
func TestActsCommandShowsLedger(t *testing.T) {
	cfg := node(t)
	file := write(t, cfg, "")
	run := func(code int, args ...string) (out, errs string) {
		t.Helper()
		var o, e bytes.Buffer
		if got := execute(t.Context(), append([]string{"acts", "--config", file}, args...), nil, &o, &e); got != code {
			t.Errorf("%v: %d, %q: want %d", args, got, e.String(), code)
		}
		return o.String(), e.String()
	}
	if out, _ := run(0); out != "BEGUN  RESPONSE  STEP  ATTEMPT  TOKEN  KIND  STATE  DETAIL\n" {
		t.Errorf("%q", out)
	}
	l := actions.Ledger{
		Life: 9, Token: 7, Entries: []actions.Entry{
			{Attempt: actions.Attempt{Response: "r7-1", Step: 2, Attempt: 1}, Token: 7, Kind: actions.KindLimitFrequency, By: fault.HalfHost,
				State: actions.Done, Detail: "2 of 2 limited", At: 1_800_000_000_000},
			{Attempt: actions.Attempt{Response: "r7-1", Step: 2, Attempt: 2}, Token: 7, Kind: actions.KindLimitFrequency, Undo: true,
				By: fault.HalfHost, State: actions.UnderWay, At: 1_800_000_001_000},
		},
		Limits: []actions.Limit{{Policy: "policy0", Former: 4_000_000, Ours: 2_000_000, Owners: map[string]uint64{"r7-1/2": 2_000_000}}},
	}
	b, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.StateDir, actions.File)
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	const want = `BEGUN                 RESPONSE  STEP  ATTEMPT  TOKEN  KIND                              STATE      DETAIL
2027-01-15T08:00:00Z  r7-1      2     1        7      node.limit-frequency              done       2 of 2 limited
2027-01-15T08:00:01Z  r7-1      2     2        7      node.limit-frequency (put back)   under way  

LIMITED  TO kHz   BEFORE kHz  BY
policy0  2000000  4000000     r7-1/2
`
	if out, _ := run(0); strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("%s\nwant\n%s", out, want)
	}
	if out, _ := run(0, "-o", "json"); !strings.Contains(out, `"response": "r7-1"`) {
		t.Error(out)
	}
	if _, errs := run(2, "-o", "yaml"); !strings.Contains(errs, "--output") {
		t.Error(errs)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := run(1); !strings.Contains(errs, "acts.json") {
		t.Error(errs)
	}
}
