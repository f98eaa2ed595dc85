package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// After an ordered restart both halves are new processes and have passed their self-tests. A refused configuration
// ends neither half.
func TestRestartCommandStartsBothHalvesAgain(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		return execute(t.Context(), append([]string{"restart", "--config", file}, args...), nil, &out, &out), out.String()
	}
	if code, said := run(); code != 1 || !strings.Contains(said, "no recovery daemon runs") {
		t.Errorf("without a daemon: %d, %s", code, said)
	}
	if code, said := run("--half", "both"); code != 2 || !strings.Contains(said, "--half") {
		t.Errorf("of no half: %d, %s", code, said)
	}
	startDaemon(t, c)
	before := map[fault.Half]int{}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		before[h] = awaitRecord(t, c, h, "it runs", runs).PID
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(bytes.Clone(good), "mtu: 1\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, said := run(); code != 2 || !strings.Contains(said, "mtu") {
		t.Errorf("with a bad configuration: %d, %s", code, said)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	for h, pid := range before {
		if got := awaitRecord(t, c, h, "it runs", runs).PID; got != pid {
			t.Errorf("the %s half was restarted for a bad configuration", h)
		}
	}
	if code, said := run(); code != 0 || strings.Count(said, "has passed its self-test") != 2 {
		t.Errorf("%d, %s", code, said)
	}
	for h, pid := range before {
		r := awaitRecord(t, c, h, "it runs", runs)
		if r.PID == pid || r.Restarts != 1 || r.State != halfcore.Running {
			t.Errorf("the %s half: %+v after process %d", h, r, pid)
		}
	}
}

// TestRestartRefusesHalfOfAnotherKernel: its daemon does not listen here.
func TestRestartRefusesHalfOfAnotherKernel(t *testing.T) {
	host, _ := twoKernels(t)
	var out bytes.Buffer
	code := execute(t.Context(), []string{"restart", "--config", write(t, host, ""), "--half", "dnp"}, nil, &out, &out)
	if code != 2 || !strings.Contains(out.String(), "another kernel") {
		t.Errorf("%d, %s", code, out.String())
	}
}
