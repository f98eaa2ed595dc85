package ctl

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReliability(t *testing.T) {
	example := filepath.Join(testdata, "..", "..", "..", "docs", "examples", "reliability.yaml")
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"reliability-paper.txt", []string{"--paper"}},
		{"reliability-paper.json", []string{"--paper", "-o", "json"}},
		{"reliability-paper-model.yaml", []string{"--paper", "--print-model"}},
		{"reliability-example.txt", []string{"-f", example, "-o", "wide"}},
		{"reliability-classes.txt", []string{"--class", "nodes=20,64,0.99", "--class", "links=1.5,192,1", "--over", "720h"}},
		{"reliability-classes.yaml", []string{"--class", "nodes=20,64,0.9,1", "-o", "yaml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, append([]string{"reliability"}, tc.args...)...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
			}
			golden(t, tc.name, got.stdout)
		})
	}
}

// TestReliabilityModelRoundTrip: what --print-model prints is a model that gives the same answer.
func TestReliabilityModelRoundTrip(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.yaml")
	if err := os.WriteFile(file, []byte(run(t, nil, "reliability", "--paper", "--print-model").stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	var a, b reliabilityAnswer
	for _, x := range []struct {
		into *reliabilityAnswer
		args []string
	}{{&a, []string{"--paper"}}, {&b, []string{"-f", file}}} {
		got := run(t, nil, append([]string{"reliability", "-o", "json"}, x.args...)...)
		if got.code != 0 {
			t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
		}
		if err := json.Unmarshal([]byte(got.stdout), x.into); err != nil {
			t.Fatal(err)
		}
	}
	if b.Rounded != nil || a.Rounded == nil {
		t.Error("the paper's rounding belongs to --paper alone")
	}
	if x, y := a.Overall.Estimates[1].Rate, b.Overall.Estimates[1].Rate; math.Abs(x-y) > 1e-12*x || len(a.Faults) != len(b.Faults) {
		t.Errorf("rates %v and %v", x, y)
	}
}

func TestReliabilityRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.yaml")
	if err := os.WriteFile(file, []byte("faults: []\ncolour: red\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{"", "0 models: want exactly one of -f FILE, --class and --paper"},
		{"--paper --class a=1,1,1", "2 models"},
		{"--paper --over -1h", "--over -1h0m0s: want a time above 0"},
		{"--class nodes", `--class "nodes": want NAME=RATE,COUNT,COVERAGE`},
		{"--class nodes=1,2", "want NAME=RATE,COUNT,COVERAGE"},
		{"--class nodes=1,many,0.5", `"many" is no number`},
		{"--class nodes=1,2,1.5", "faults[0].classes[0].coverage: 1.5: want 0 to 1"},
		{"--class nodes=1,2,.5 --class nodes=1,2,.5", `name "nodes" is there twice`},
		{"--class nodes=NaN,2,.5", "want a number above 0"},
		{"-f " + file, `unknown field "colour"`},
		{"-f " + file + ".not", "no such file"},
		{"--paper more", `argument "more": none is wanted`},
	} {
		got := run(t, nil, append([]string{"reliability"}, strings.Fields(tc.args)...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("%q: exit code %d, stderr %q, want one with %q", tc.args, got.code, got.stderr, tc.want)
		}
	}
}
