package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// supervisorWeight is the weight of a supervisor's cgroup, ten times the usual one, as in the packaged unit.
const supervisorWeight = 1000

// ownCgroup returns the directory of this process's cgroup (v2).
func ownCgroup() (string, error) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("find own cgroup: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find own cgroup: %w", err)
	}
	return findCgroup(groups, mounts)
}

// findCgroup is ownCgroup for the content of /proc/self/cgroup and /proc/self/mountinfo.
func findCgroup(groups, mounts []byte) (string, error) {
	path, at := "", ""
	for line := range bytes.Lines(groups) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::"); ok {
			path = p
		}
	}
	for s := bufio.NewScanner(bytes.NewReader(mounts)); s.Scan(); {
		before, after, _ := strings.Cut(s.Text(), " - ")
		if f := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(f) > 4 {
			at = f[4]
		}
	}
	if path == "" || at == "" {
		return "", errors.New("find own cgroup: no cgroup v2 here")
	}
	return filepath.Join(at, path), nil
}

// weigh moves a process into a cgroup of its own below parent, with supervisorWeight, and returns the group's directory.
// parent must already enable the cpu controller for its children: weigh does not change the settings of parent.
func weigh(parent, name string, pid int) (group string, err error) {
	given, err := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control"))
	if err != nil {
		return "", fmt.Errorf("cgroup weight: %w", err)
	}
	if !slices.Contains(strings.Fields(string(given)), "cpu") {
		return "", fmt.Errorf("cgroup weight: %s gives its groups no cpu controller", parent)
	}
	group = filepath.Join(parent, name)
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("cgroup weight: %w", err)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"cpu.weight", supervisorWeight}, {"cgroup.procs", pid}} {
		if err := writeExisting(filepath.Join(group, f.name), strconv.Itoa(f.value)); err != nil {
			return "", errors.Join(fmt.Errorf("cgroup weight: %w", err), os.Remove(group))
		}
	}
	return group, nil
}

func writeExisting(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// groupName returns the name of the cgroup of a replica, which no other cluster on this machine uses.
func (c *Cluster) groupName(id string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.dir)) // never fails
	return fmt.Sprintf("lofamo-%08x-%s", h.Sum32(), id)
}

// weighSupervisor gives a started replica a cgroup with weight, where this process may do that.
func (c *Cluster) weighSupervisor(s *SupervisorInfo) error {
	parent, err := ownCgroup()
	if err != nil {
		return err
	}
	s.Group, err = weigh(parent, c.groupName(s.ID), s.PID)
	return err
}

// removeGroup removes the cgroup of a replica that has ended.
func (s *SupervisorInfo) removeGroup() {
	if s.Group != "" {
		_ = os.Remove(s.Group) // an empty group that stays does no harm
		s.Group = ""
	}
}
