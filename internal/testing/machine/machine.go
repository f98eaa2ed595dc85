// Package machine describes the machine that a published measurement ran on, and the source that it measured.
package machine

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Describe returns the number and model of the processors, and the versions of the kernel and of Go.
func Describe() string {
	model := "unknown processor"
	b, _ := os.ReadFile("/proc/cpuinfo") // without it the processor is unknown
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
			model = strings.TrimSpace(v)
			break
		}
	}
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%d × %s, Linux %s, %s", runtime.NumCPU(), model, kernel, runtime.Version())
}

// LoadAverages returns the load averages of the last 1, 5 and 15 minutes.
func LoadAverages() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

// SourceCommit names the commit of the source, with "-dirty" after changes; "unknown" outside of a clone.
func SourceCommit() string {
	b, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
