package cluster

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestOwnCgroupIsFoundBelowItsMount(t *testing.T) {
	const v1 = "35 24 0:30 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n"
	const unified = "36 24 0:31 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
	for name, tt := range map[string]struct{ groups, mounts, want, err string }{
		"a session":           {"0::/user.slice/session-3.scope\n", unified, "/sys/fs/cgroup/unified/user.slice/session-3.scope", ""},
		"beside version 1":    {"1:cpu:/a\n0::/\n", v1 + unified, "/sys/fs/cgroup/unified", ""},
		"version 1 alone":     {"1:cpu:/a\n", v1, "", "no cgroup v2 here"},
		"nothing is mounted":  {"0::/\n", v1, "", "no cgroup v2 here"},
		"a damaged mountinfo": {"0::/\n", "36 24 - cgroup2 cgroup2 rw\n", "", "no cgroup v2 here"},
	} {
		got, err := findCgroup([]byte(tt.groups), []byte(tt.mounts))
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v: want %q, %q", name, got, err, tt.want, tt.err)
		}
	}
}

// TestWeightIsWrittenBeforeProcessMoves: the folder stands for a cgroup, which has its files from the start.
func TestWeightIsWrittenBeforeProcessMoves(t *testing.T) {
	parent := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(parent, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(parent, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("cgroup.subtree_control", "cpuset memory\n")
	_, err := weigh(parent, "lofamo-1-sup-0", 4711)
	if err == nil || !strings.Contains(err.Error(), parent+" gives its groups no cpu controller") {
		t.Fatalf("without the controller: %v", err)
	}
	put("cgroup.subtree_control", "cpuset cpu memory\n")
	if _, err := weigh(parent, "lofamo-1-sup-0", 4711); err == nil || !strings.Contains(err.Error(), "cpu.weight") {
		t.Fatalf("without the file of the weight: %v", err)
	}
	if _, err := os.Stat(filepath.Join(parent, "lofamo-1-sup-0")); err == nil {
		t.Fatal("the group stays after a failure")
	}
	put("lofamo-1-sup-0/cpu.weight", "100\n")
	put("lofamo-1-sup-0/cgroup.procs", "")
	group, err := weigh(parent, "lofamo-1-sup-0", 4711)
	if err != nil || group != filepath.Join(parent, "lofamo-1-sup-0") {
		t.Fatalf("%q, %v", group, err)
	}
	for name, want := range map[string]string{"cpu.weight": "1000", "cgroup.procs": "4711"} {
		if b, err := os.ReadFile(filepath.Join(group, name)); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v: want %s", name, b, err, want)
		}
	}
}

// TestSupervisorIsWeighedOrSaysWhy runs on the machine's own cgroups. Many give a process no right to a weight:
// then nothing changes, and the error names the group.
func TestSupervisorIsWeighedOrSaysWhy(t *testing.T) {
	pid := sleeper(t)
	groupOf := func() string {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := groupOf()
	c, s := Cluster{dir: t.TempDir()}, SupervisorInfo{ID: "sup-0", PID: pid}
	if err := c.weighSupervisor(&s); err != nil {
		if groupOf() != before || s.Group != "" || !strings.Contains(err.Error(), "cgroup") {
			t.Errorf("%v: the process is in %s, before in %s", err, groupOf(), before)
		}
		return
	}
	if b, err := os.ReadFile(filepath.Join(s.Group, "cpu.weight")); err != nil || strings.TrimSpace(string(b)) != "1000" {
		t.Errorf("weight %q, %v: want 1000", b, err)
	}
	if !strings.Contains(groupOf(), c.groupName("sup-0")) {
		t.Errorf("the process is in %s", groupOf())
	}
	own, err := ownCgroup()
	if err != nil {
		t.Fatal(err)
	}
	if err := writeExisting(filepath.Join(own, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		t.Fatal(err)
	}
	group := s.Group
	if s.removeGroup(); s.Group != "" {
		t.Error("the group is still noted")
	}
	if _, err := os.Stat(group); err == nil {
		t.Error("the group stays")
	}
}
