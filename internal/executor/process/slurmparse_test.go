package process

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// shown is a node as Slurm 22.05 prints it.
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
		"IDLE": false, "IDLE+DRAIN": true, "ALLOCATED+DRAIN": true, "MIXED*+DRAIN": true, "DOWN+DRAIN+NOT_RESPONDING": true, "DRAINED": true,
		"DRAINING@": true,
		"DOWN*":     false, "IDLE+MAINTENANCE": false, "DOWN+NOT_RESPONDING": false,
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

func TestSlurmMarkRoundTrip(t *testing.T) {
	m := slurmMark{cluster: "c", entries: []slurmEntry{{"r5-1", 5}, {"r6-2", 18446744073709551615}}, text: "disk ] is [r7@1] failing"}
	got, ours := parseMark(m.String(), "c")
	if !ours || !cmp.Equal(got, m, cmp.AllowUnexported(slurmMark{}, slurmEntry{})) {
		t.Errorf("%q reads as %+v", m, got)
	}
	if got, want := reasonOf("disk is failing", slurmEntry{"r5-1",
		5}), "lofamo:c[r5-1@5 #dd079466] disk is failing"; got != want { // as in the documentation
		t.Errorf("%q: want %q", got, want)
	}
	for _, reason := range []string{
		"", "disk", "lofamo:c", "lofamo:c[r5-1@5", "lofamo:cc[r5-1@5]", "lofamo:c[r5-1]", "lofamo:c[]", "lofamo:c[@5]", "lofamo:c[r5-1@x]",
		"lofamo:c[r5-1@-1]",
		"lofamo:c[r5-1@5]", "lofamo:c[r5-1@5] x", "lofamo:c[r5-1@5 #] x", "lofamo:c[r5-1@5 #00000000] x",
		"see " + reasonOf("x", slurmEntry{"r5-1", 5}), " " + reasonOf("x", slurmEntry{"r5-1", 5}), reasonOf("",
			slurmEntry{"", 5}), reasonOf(""), reasonOf("x", slurmEntry{"r5-1", 5}, slurmEntry{"r5-1", 6}),
	} {
		if m, ours := parseMark(reason, "c"); ours {
			t.Errorf("%q is taken for ours: %+v", reason, m)
		}
	}
}

// reasonOf returns a reason of cluster c as we set it.
func reasonOf(text string, entries ...slurmEntry) string {
	return slurmMark{"c", entries, text}.String()
}

// TestChangedMarkIsNotOurs: a mark with any change or addition no longer counts as ours, and whose reports the change.
func TestChangedMarkIsNotOurs(t *testing.T) {
	for _, text := range []string{"disk is failing", ""} {
		set := reasonOf(text, slurmEntry{"r5-1", 5}, slurmEntry{"r6-1", 6})
		if _, ours := parseMark(set, "c"); !ours {
			t.Errorf("%q is not ours", set)
		}
		changed := []string{set + " ", set + ".", set + "; keep it drained, fan", set + "\nkeep", set + " " + set,
			strings.Replace(set, "r6-1@6", "r7-1@6", 1), strings.Replace(set, " r6-1@6", "", 1)}
		for i := range len(set) {
			changed = append(changed, set[:i]+set[i+1:], set[:i]+"~"+set[i+1:], set[:i]+"~"+set[i:])
		}
		for _, reason := range changed {
			if m, ours := parseMark(reason, "c"); ours {
				t.Errorf("%q is taken for ours: %+v", reason, m)
			}
		}
	}
	if got := whose(reasonOf("x", slurmEntry{"r5-1", 5})+" y", "c"); !strings.Contains(got, "changed since") {
		t.Error(got)
	}
	if got := whose("fan", "c"); got != "another" {
		t.Error(got)
	}
}

// TestReasonOfSeveralLinesIsRead: text that somebody has added below our reason is part of the reason.
func TestReasonOfSeveralLinesIsRead(t *testing.T) {
	set := reasonOf("x", slurmEntry{"r5-1", 5})
	for _, reason := range []string{set + " [root@2026-01-02T03:04:05]\n          keep it",
		set + "\nkeep it [root@2026-01-02T03:04:05]", set + " [root@2026-01-02T03:04:05]\n   keep it = yes"} {
		n, err := parseNode("n1", strings.NewReplacer("STATE", "IDLE+DRAIN", "Reason=fan [1] broken [root@2026-01-02T03:04:05]\n",
			"Reason="+reason+"\n   Comment=x\n").Replace(shown))
		if err != nil || !strings.HasPrefix(n.reason, set+"\n") || !strings.Contains(n.reason, "keep it") ||
			strings.Contains(n.reason, "Comment") {
			t.Errorf("%q reads as %q, %v", reason, n.reason, err)
		}
		if _, ours := parseMark(n.reason, "c"); ours {
			t.Errorf("%q is taken for ours", n.reason)
		}
	}
}

func TestSlurmTextIsCleanedAndCut(t *testing.T) {
	for _, tc := range [][2]string{
		{" a\n b\t\"c\" ", "a b c"}, {"ä\x00\x7f\xffb", "ä b"}, {"the node's 'fan' '", "the node's 'fan"}, {strings.Repeat("ä", 300),
			strings.Repeat("ä", maxSlurmText/2)},
		{"x" + strings.Repeat("ä", 300), "x" + strings.Repeat("ä", maxSlurmText/2-1)},
	} {
		if got := slurmText(tc[0]); got != tc[1] {
			t.Errorf("%q: %q, want %q", tc[0], got, tc[1])
		}
	}
}

func TestSlurmValidationNamesField(t *testing.T) {
	if err := (SlurmConfig{Scontrol: "/usr/bin/scontrol", Conf: "/etc/slurm/slurm.conf",
		Nodes: map[fault.NodeID]string{"a": "n1", "b": "n2"}}).Validate(); err != nil {
		t.Error(err)
	}
	err := SlurmConfig{Scontrol: "scontrol", Conf: "slurm.conf",
		Nodes: map[fault.NodeID]string{"a": "n[1-9]", "b": "ALL", "c": "n1", "d": "n1", "e": "n1,n2"}}.Validate()
	for _, field := range []string{"scontrol: given", "conf: given", "nodes.a: given", "nodes.b: given", "nodes.e: given",
		`c and d are both "n1"`} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: want %s", err, field)
		}
	}
}

// TestNamesOfManyNodesAreRefused: a name that stands for more than one node, or for an option, never reaches scontrol.
func TestNamesOfManyNodesAreRefused(t *testing.T) {
	if _, err := newSlurm(SlurmConfig{Scontrol: "/nowhere/scontrol"}); err == nil {
		t.Error("a program that is not there is taken")
	}
	x := &slurmExecutor{cfg: SlurmConfig{Scontrol: "/nowhere/scontrol"}, busy: map[string]chan struct{}{}}
	for _, name := range []string{"", "ALL", "all", "n[1-3]", "n1,n2", "-n", "n1 State=DOWN", "n1\nReason=x", "localhost"} {
		if r := x.Do(t.Context(), slurmJob(name, "r5-1", 1, false)); r.Outcome != response.Unchanged ||
			!strings.Contains(r.Detail, "want the name of one node") {
			t.Errorf("%q: %+v", name, r)
		}
	}
	for _, change := range []func(j *executor.Job){func(j *executor.Job) { j.Response = "r]" }, func(j *executor.Job) { j.Cluster = "c d" }} {
		j := slurmJob("n1", "r5-1", 1, false)
		change(&j)
		if r := x.Do(t.Context(), j); r.Outcome != response.Unchanged || !strings.Contains(r.Detail, "marked in the reason") {
			t.Errorf("%+v", r)
		}
	}
	if r := x.Do(t.Context(), slurmJob("n1", "r5-1", 1, false)); r.Outcome != response.Unchanged ||
		!strings.Contains(r.Detail, "not started") {
		t.Errorf("without a program: %+v", r)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(strings.Replace(shown, "STATE", "IDLE+DRAIN", 1))
	f.Add("lofamo:c[r5-1@5] x")
	f.Add(reasonOf("x", slurmEntry{"r5-1", 5}))
	f.Add(reasonOf("", slurmEntry{"r5-1", 5}, slurmEntry{"r6-1", 6}))
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseNode("n1", text); err == nil && n.state == "" {
			t.Errorf("%q: %+v", text, n)
		}
		if m, ours := parseMark(text, "c"); ours && m.String() != text {
			t.Errorf("%q reads as %+v", text, m)
		}
		m := slurmMark{"c", []slurmEntry{{"r5-1", 5}}, slurmText(text)}
		if got, ours := parseMark(m.String(), "c"); !ours || !cmp.Equal(got, m, cmp.AllowUnexported(slurmMark{}, slurmEntry{})) {
			t.Errorf("%q reads as %+v, %t", m, got, ours)
		}
		for _, more := range []string{" ", ".", "; keep it", "\n" + text, " " + m.String()} {
			if got, ours := parseMark(m.String()+more, "c"); ours {
				t.Errorf("%q is taken for ours: %+v", m.String()+more, got)
			}
		}
	})
}
