package slurm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// shown is as Slurm 22.05 prints a node.
const shown = `NodeName=n1 Arch=x86_64 CoresPerSocket=1 
   CPUAlloc=0 CPUEfctv=1 CPUTot=1 CPULoad=0.00
   NodeAddr=127.0.0.1 NodeHostName=vm Version=22.05.8
   State=STATE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=debug 
   BootTime=None SlurmdStartTime=None
   Reason=fan [1] broken [root@2026-01-02T03:04:05]

`

func TestParseNode(t *testing.T) {
	for state, drained := range map[string]bool{
		"IDLE": false, "IDLE+DRAIN": true, "ALLOCATED+DRAIN": true, "MIXED*+DRAIN": true, "DOWN+DRAIN+NOT_RESPONDING": true, "DRAINED": true, "DRAINING@": true,
		"DOWN*": false, "IDLE+MAINTENANCE": false, "DOWN+NOT_RESPONDING": false,
	} {
		n, err := parseNode("n1", strings.Replace(shown, "STATE", state, 1))
		if err != nil || n.drained != drained || n.state != state || n.reason != "fan [1] broken" {
			t.Errorf("%s: %+v, %v", state, n, err)
		}
	}
	good := strings.Replace(shown, "STATE", "IDLE", 1)
	for name, text := range map[string]string{
		"another node": strings.Replace(good, "NodeName=n1 ", "NodeName=n11 ", 1),
		"two nodes":    good + good,
		"no state":     strings.Replace(good, "   State=", "   Estate=", 1),
		"two reasons":  good + "   Reason=x\n",
		"nothing":      "",
	} {
		if n, err := parseNode("n1", text); err == nil {
			t.Errorf("%s: %+v", name, n)
		}
	}
}

func TestMark(t *testing.T) {
	m := mark{cluster: "c", entries: []entry{{"r5-1", 5}, {"r6-2", 18446744073709551615}}, text: "disk ] is [r7@1] failing"}
	got, ours := parseMark(m.String(), "c")
	if !ours || !cmp.Equal(got, m, cmp.AllowUnexported(mark{}, entry{})) {
		t.Errorf("%q reads as %+v", m, got)
	}
	for _, reason := range []string{
		"", "disk", "lofamo:c", "lofamo:c[r5-1@5", "lofamo:cc[r5-1@5]", "lofamo:c[r5-1]", "lofamo:c[]", "lofamo:c[@5]", "lofamo:c[r5-1@x]", "lofamo:c[r5-1@-1]",
		"lofamo:c[r5-1@5]x", " lofamo:c[r5-1@5]", "lofamo:c[r5-1@5  r5-2@5]", "lofamo:c[r5-1@5 r5-1@6]", "see lofamo:c[r5-1@5]",
	} {
		if m, ours := parseMark(reason, "c"); ours {
			t.Errorf("%q is taken for ours: %+v", reason, m)
		}
	}
}

func TestTextOf(t *testing.T) {
	for _, tc := range [][2]string{
		{" a\n b\t\"c\" ", "a b c"}, {"ä\x00\x7f\xffb", "ä b"}, {strings.Repeat("ä", 300), strings.Repeat("ä", maxText/2)},
		{"x" + strings.Repeat("ä", 300), "x" + strings.Repeat("ä", maxText/2-1)},
	} {
		if got := textOf(tc[0]); got != tc[1] {
			t.Errorf("%q: %q, want %q", tc[0], got, tc[1])
		}
	}
}

func TestValidate(t *testing.T) {
	if err := (Config{Scontrol: "/usr/bin/scontrol", Conf: "/etc/slurm/slurm.conf", Nodes: map[fault.NodeID]string{"a": "n1", "b": "n2"}}).Validate(); err != nil {
		t.Error(err)
	}
	err := Config{Scontrol: "scontrol", Conf: "slurm.conf", Nodes: map[fault.NodeID]string{"a": "n[1-9]", "b": "ALL", "c": "n1", "d": "n1", "e": "n1,n2"}}.Validate()
	for _, field := range []string{"scontrol: given", "conf: given", "nodes.a: given", "nodes.b: given", "nodes.e: given", `c and d are both "n1"`} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: want %s", err, field)
		}
	}
}

// TestNamesOfMany: a name that means more than one node, or an option, never comes as far as scontrol.
func TestNamesOfMany(t *testing.T) {
	if _, err := New(Config{Scontrol: "/nowhere/scontrol"}); err == nil {
		t.Error("a program that is not there is taken")
	}
	x := &Executor{cfg: Config{Scontrol: "/nowhere/scontrol"}, busy: map[string]chan struct{}{}}
	for _, name := range []string{"", "ALL", "all", "n[1-3]", "n1,n2", "-n", "n1 State=DOWN", "n1\nReason=x", "localhost"} {
		if r := x.Do(t.Context(), job(name, "r5-1", 1, false)); r.Outcome != response.Unchanged || !strings.Contains(r.Detail, "want the name of one node") {
			t.Errorf("%q: %+v", name, r)
		}
	}
	for _, change := range []func(j *executor.Job){func(j *executor.Job) { j.Response = "r]" }, func(j *executor.Job) { j.Cluster = "c d" }} {
		j := job("n1", "r5-1", 1, false)
		change(&j)
		if r := x.Do(t.Context(), j); r.Outcome != response.Unchanged || !strings.Contains(r.Detail, "marked in the reason") {
			t.Errorf("%+v", r)
		}
	}
	if r := x.Do(t.Context(), job("n1", "r5-1", 1, false)); r.Outcome != response.Unchanged || !strings.Contains(r.Detail, "not started") {
		t.Errorf("without a program: %+v", r)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(strings.Replace(shown, "STATE", "IDLE+DRAIN", 1))
	f.Add("lofamo:c[r5-1@5] x")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseNode("n1", text); err == nil && n.state == "" {
			t.Errorf("%q: %+v", text, n)
		}
		m, ours := parseMark(text, "c")
		if !ours {
			return
		}
		if again, ok := parseMark(m.String(), "c"); !ok || !cmp.Equal(again, m, cmp.AllowUnexported(mark{}, entry{})) {
			t.Errorf("%q reads as %+v, and that as %+v", text, m, again)
		}
	})
}
