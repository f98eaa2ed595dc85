package program

import (
	"strings"
	"testing"
)

func TestBuildIsNeverEmpty(t *testing.T) {
	info := Build()
	if info.Version == "" || info.Go == "" || info.OS == "" || info.Arch == "" {
		t.Fatalf("%+v: a field is empty", info)
	}
	if s := info.String(); !strings.Contains(s, info.Version) || !strings.Contains(s, info.Go) {
		t.Fatalf("String() = %q", s)
	}
}

func TestStringShortensCommit(t *testing.T) {
	i := BuildInfo{Version: "v1", Commit: "0123456789abcdef", Dirty: true, Go: "go1.26", OS: "linux", Arch: "amd64"}
	if got, want := i.String(), "v1 (commit 0123456789ab, with changes) go1.26 linux/amd64"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
