package program

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker (-X); without it the module's own version stands in.
var version string

// BuildInfo describes the build of a binary. It does not know protocols: decoders decide on compatibility.
type BuildInfo struct {
	Version string `json:"version"`          // the nearest tag and the commits after that tag, or the commit
	Commit  string `json:"commit,omitempty"` // of the source, where the build recorded it
	Date    string `json:"date,omitempty"`   // of that commit, RFC 3339
	Dirty   bool   `json:"dirty,omitempty"`  // the source had uncommitted changes
	Go      string `json:"go"`               // the compiler
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// Build returns the build of the running binary.
func Build() BuildInfo {
	info := BuildInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Commit = s.Value
			case "vcs.time":
				info.Date = s.Value
			case "vcs.modified":
				info.Dirty = s.Value == "true"
			}
		}
		if info.Version == "" {
			info.Version = build.Main.Version
		}
	}
	if info.Version == "" {
		info.Version = "unknown"
	}
	return info
}

// String returns one line for people.
func (i BuildInfo) String() string {
	s := i.Version
	if i.Commit != "" {
		c := i.Commit
		if len(c) > 12 {
			c = c[:12]
		}
		s += " (commit " + c
		if i.Dirty {
			s += ", with changes"
		}
		s += ")"
	}
	return fmt.Sprintf("%s %s %s/%s", s, i.Go, i.OS, i.Arch)
}
