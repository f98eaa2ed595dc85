package program

import (
	"bytes"
	"io"
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

func TestVersionFlagPrintsTheLineOfVersion(t *testing.T) {
	var line [2]bytes.Buffer
	for i, arg := range []string{"version", "--version"} {
		root := Root("lofamo-test", "short", "version")
		root.AddCommand(VersionCommand("lofamo-test"))
		if code := Execute(root, []string{arg}, &line[i], io.Discard); code != 0 {
			t.Fatalf("%s: exit code %d", arg, code)
		}
	}
	if line[0].String() != line[1].String() || !strings.HasPrefix(line[0].String(), "lofamo-test ") {
		t.Errorf("version %q, --version %q", line[0].String(), line[1].String())
	}
}
