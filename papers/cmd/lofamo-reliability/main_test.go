package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the answers into testdata; then review them")

// output runs the command and fails the test if the command does.
func output(t *testing.T, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := run(args, strings.NewReader(""), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestHelpNamesEveryFlag(t *testing.T) {
	var help bytes.Buffer
	if err := run([]string{"-h"}, strings.NewReader(""), io.Discard, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for _, want := range []string{"usage: lofamo-reliability", "-class", "-f ", "-over", "-paper", "-print-model", "-o "} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("the help lacks %q:\n%s", want, help.String())
		}
	}
}

func TestReliability(t *testing.T) {
	example := filepath.Join("..", "..", "..", "docs", "examples", "reliability.yaml")
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"reliability-paper.txt", []string{"-paper"}},
		{"reliability-paper.json", []string{"-paper", "-o", "json"}},
		{"reliability-paper-model.yaml", []string{"-paper", "-print-model"}},
		{"reliability-example.txt", []string{"-f", example, "-o", "wide"}},
		{"reliability-classes.txt", []string{"-class", "nodes=20,64,0.99", "-class", "links=1.5,192,1", "-over", "720h"}},
		{"reliability-classes.yaml", []string{"-class", "nodes=20,64,0.9,1", "-o", "yaml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := output(t, tc.args...)
			path := filepath.Join("testdata", tc.name)
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs; got:\n%s\nwant:\n%s", path, got, want)
			}
		})
	}
}

// TestReliabilityModelRoundTrip: a model that -print-model printed gives the same answer.
func TestReliabilityModelRoundTrip(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.yaml")
	if err := os.WriteFile(file, output(t, "-paper", "-print-model"), 0o600); err != nil {
		t.Fatal(err)
	}
	var a, b answer
	for _, x := range []struct {
		into *answer
		args []string
	}{{&a, []string{"-paper"}}, {&b, []string{"-f", file}}} {
		if err := json.Unmarshal(output(t, append(x.args, "-o", "json")...), x.into); err != nil {
			t.Fatal(err)
		}
	}
	if b.Rounded != nil || a.Rounded == nil {
		t.Error("the paper's rounding belongs to -paper alone")
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
		{"", "0 models: want exactly one of -f FILE, -class and -paper"},
		{"-paper -class a=1,1,1", "2 models"},
		{"-paper -over -1h", "-over -1h0m0s: want a time above 0"},
		{"-class nodes", `-class "nodes": want NAME=RATE,COUNT,COVERAGE`},
		{"-class nodes=1,2", "want NAME=RATE,COUNT,COVERAGE"},
		{"-class nodes=1,many,0.5", `"many" is no number`},
		{"-class nodes=1,2,1.5", "faults[0].classes[0].coverage: 1.5: want 0 to 1"},
		{"-class nodes=1,2,.5 -class nodes=1,2,.5", `name "nodes" is there twice`},
		{"-class nodes=NaN,2,.5", "want a number above 0"},
		{"-f " + file, `unknown field "colour"`},
		{"-f " + file + ".not", "no such file"},
		{"-paper -o csv", `-o "csv": want table, wide, json or yaml`},
		{"-colour", "not defined"},
		{"-paper more", `argument "more": want none`},
	} {
		var out bytes.Buffer
		err := run(strings.Fields(tc.args), strings.NewReader(""), &out, io.Discard)
		if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), tc.want) || out.Len() > 0 {
			t.Errorf("%q: %v and %q, want a usage error with %q", tc.args, err, out.String(), tc.want)
		}
	}
}
