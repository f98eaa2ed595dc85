package ctl

import (
	"crypto/sha256"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

// threeMembers are the raft leader, a full member and a new one.
func threeMembers() *lofamov1.ListMembersResponse {
	return &lofamov1.ListMembersResponse{Members: []*lofamov1.Member{
		{Id: "beef", PeerUrl: "https://10.0.0.3:2380", Learner: true, Problem: "not started yet"},
		{Id: "1f", Name: "s1", PeerUrl: "https://10.0.0.1:2380", ClientUrl: "https://10.0.0.1:2379", Healthy: true, RaftLeader: true,
			Version:  "3.7.3",
			Revision: 4711, DbBytes: 30 << 20, DbInUseBytes: 12 << 20, QuotaBytes: 1 << 30},
		{Id: "2a", Name: "s2", PeerUrl: "https://10.0.0.2:2380", ClientUrl: "https://10.0.0.2:2379", Healthy: true, Version: "3.7.3",
			Revision: 4709, DbBytes: 1 << 30, DbInUseBytes: 13 << 20, QuotaBytes: 1 << 30, Alarms: []string{"NOSPACE"}},
	}}
}

func TestSupervisorList(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	r.Server.Admin.Members = threeMembers()
	for name, args := range map[string][]string{
		"supervisor_list.txt": {"supervisor", "list"}, "supervisor_list_wide.txt": {"supervisor", "list", "-o", "wide"},
		"supervisor_list.json": {"supervisor", "list", "-o", "json"}, "supervisor_alarms.txt": {"supervisor", "alarms"},
	} {
		got := run(t, nil, r.Flags(args...)...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%v: exit code %d, %s", args, got.code, got.stderr)
		}
		ctltest.Golden(t, name, got.stdout)
	}
	r.Server.Admin.Members.Stale = true
	if got := run(t, nil, r.Flags("supervisor", "list")...); got.code != 0 || !strings.Contains(got.stderr, "no quorum") {
		t.Errorf("without a quorum: exit code %d, %s", got.code, got.stderr)
	}
}

// TestAlarmsOfUnknownMemberAreRefused: the error names the members.
func TestAlarmsOfUnknownMemberAreRefused(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	r.Server.Admin.Members = threeMembers()
	got := run(t, nil, r.Flags("supervisor", "alarms", "s9")...)
	if want := `supervisor alarms: member "s9": want one of beef, s1, s2`; got.code != command.ExitUsage || got.stdout != "" ||
		!strings.Contains(got.stderr, want) {
		t.Errorf("exit code %d, %q, %q: want %q", got.code, got.stdout, got.stderr, want)
	}
	for name, want := range map[string]string{"2a": "NOSPACE of s2: ", "s1": "no alarms\n"} {
		if got := run(t, nil, r.Flags("supervisor", "alarms", name)...); got.code != 0 || !strings.HasPrefix(got.stdout, want) {
			t.Errorf("%s: exit code %d, %q, %q: want %q", name, got.code, got.stdout, got.stderr, want)
		}
	}
}

func TestSupervisorReplaceElsewhere(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	r.Server.Admin.Steps = []*lofamov1.MemberProgress{
		{Step: lofamov1.MemberStep_REMOVED, Message: "s2 is out: 2 members are left"},
		{Step: lofamov1.MemberStep_ADDED, Message: "s2 is in as a learner", InitialCluster: "s1=https://10.0.0.1:2380,s2=https://10.0.0.2:2380"},
		{Step: lofamov1.MemberStep_PROMOTED, Message: "s2 votes"},
	}
	got := run(t, nil, r.Flags("supervisor", "replace", "s2", "--wait", "1m")...)
	if got.code != 0 {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
	ctltest.Golden(t, "supervisor_replace.txt", got.stdout)
	got = run(t, nil, r.Flags("supervisor", "add", "s4", "--peer-url", "https://10.0.0.4:2380")...)
	if got.code != 0 {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
	asked := strings.ReplaceAll(strings.Join(r.Server.Admin.Asked, "\n"), "  ", " ")
	for _, want := range []string{`replace name:"s2" wait:{seconds:60}`, `add name:"s4" peer_url:"https://10.0.0.4:2380" wait:{seconds:300}`} {
		if !strings.Contains(asked, want) {
			t.Errorf("asked for\n%s\nwant %s", asked, want)
		}
	}
	// A call with effects is not repeated, although its code permits another replica.
	r.Server.Admin.Asked, r.Server.Admin.Err = nil, status.Error(codes.Unavailable, "the replica stops")
	got = run(t, nil, r.Flags("supervisor", "replace", "s2")...)
	if got.code != command.ExitFailure || !strings.Contains(got.stderr, "supervisor replace: the replica stops") ||
		len(r.Server.Admin.Asked) != 1 {
		t.Errorf("exit code %d, %s, asked %q", got.code, got.stderr, r.Server.Admin.Asked)
	}
}

// TestSupervisorAddTakesTooLong: the supervisor's error explains that the new member stays a learner, and that the same
// command continues.
func TestSupervisorAddTakesTooLong(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	const says = "s4 has not caught up within 2s (not started yet): it stays a learner. `lofamoctl supervisor add` continues with it"
	r.Server.Admin.Steps = []*lofamov1.MemberProgress{{Step: lofamov1.MemberStep_ADDED, Message: "s4 is in as a learner"}}
	r.Server.Admin.Err = status.Error(codes.DeadlineExceeded, says)
	got := run(t, nil, r.Flags("supervisor", "add", "s4", "--peer-url", "https://10.0.0.4:2380", "--wait", "2s")...)
	if got.code != command.ExitFailure || !strings.Contains(got.stderr, says) {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
}

// TestSupervisorRemoveWarns when the remaining members cannot lose another one. Members without a vote do not count.
func TestSupervisorRemoveWarns(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	voter, learner := &lofamov1.Member{}, &lofamov1.Member{Learner: true}
	for _, c := range []struct {
		left         []*lofamov1.Member
		says, warned string
	}{
		{[]*lofamov1.Member{voter, voter, voter, voter}, "s2 is out: 4 members are left\n", ""},
		{[]*lofamov1.Member{voter, voter, voter}, "s2 is out: 3 members are left\n", ""},
		{[]*lofamov1.Member{voter, voter, learner}, "s2 is out: 3 members are left\n", "two members tolerate no loss"},
		{[]*lofamov1.Member{voter, voter}, "s2 is out: 2 members are left\n", "two members tolerate no loss"},
		{[]*lofamov1.Member{voter}, "s2 is out: 1 member is left\n", "one member alone tolerates no loss"},
	} {
		r.Server.Admin.Members = &lofamov1.ListMembersResponse{Members: c.left}
		got := run(t, nil, r.Flags("supervisor", "remove", "s2")...)
		if got.code != 0 || got.stdout != c.says || (got.stderr == "") != (c.warned == "") || !strings.Contains(got.stderr, c.warned) {
			t.Errorf("%d left: exit code %d, %q, %q: want %q, %q", len(c.left), got.code, got.stdout, got.stderr, c.says, c.warned)
		}
	}
}

func chunks(data string) []*lofamov1.SnapshotChunk {
	sum := sha256.Sum256([]byte(data))
	return []*lofamov1.SnapshotChunk{
		{Header: &lofamov1.SnapshotHeader{Cluster: "c", Member: "s1", Revision: 7, Confirmed: true}},
		{Data: []byte(data[:3])}, {Data: []byte(data[3:])},
		{Trailer: &lofamov1.SnapshotTrailer{Bytes: uint64(len(data)), Sha256: sum[:]}},
	}
}

func TestSupervisorSnapshot(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	files := inDir(t)
	r.Server.Admin.Chunks = chunks("abcdefgh")
	got := run(t, nil, r.Flags("supervisor", "snapshot", "store.db")...)
	if want := "store.db: 8 bytes, cluster c, all up to revision 7, from s1\n"; got.code != 0 || got.stdout != want || got.stderr != "" {
		t.Errorf("exit code %d, %q, %q", got.code, got.stdout, got.stderr)
	}
	if f := files(); f != "store.db=abcdefgh" {
		t.Error(f)
	}
	if st, err := os.Stat("store.db"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: it holds all there is to know", st.Mode(), err)
	}
	if got := run(t, nil, r.Flags("supervisor", "snapshot", "store.db")...); got.code != command.ExitUsage ||
		!strings.Contains(got.stderr, "--force") {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
	for want, spoil := range map[string]func(){
		"does not agree":       func() { r.Server.Admin.Chunks[2].Data = []byte("xefgh") },
		"without its checksum": func() { r.Server.Admin.Chunks = r.Server.Admin.Chunks[:3] },
	} {
		r.Server.Admin.Chunks = chunks("abcdefgh")
		spoil()
		if got := run(t, nil, r.Flags("supervisor", "snapshot", "other.db")...); got.code != command.ExitFailure ||
			!strings.Contains(got.stderr, want) {
			t.Errorf("exit code %d, %s, want %s", got.code, got.stderr, want)
		}
	}
	if f := files(); f != "store.db=abcdefgh" {
		t.Errorf("after failures: %s", f)
	}
	r.Server.Admin.Chunks = chunks("12345678")
	r.Server.Admin.Chunks[0].Header.Confirmed = false
	got = run(t, nil, r.Flags("supervisor", "snapshot", "--force", "store.db")...)
	if got.code != 0 || !strings.Contains(got.stderr, "no quorum: s1 may lack the newest changes") || files() != "store.db=12345678" {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
}

// TestSnapshotReplacesFilesOnly: a snapshot replaces no device, pipe, link or directory.
func TestSnapshotReplacesFilesOnly(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	t.Chdir(t.TempDir())
	if err := errors.Join(syscall.Mkfifo("pipe", 0o600), os.Symlink("/dev/null", "null")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pipe", "null", "."} {
		r.Server.Admin.Chunks = chunks("abcdefgh")
		got := run(t, nil, r.Flags("supervisor", "snapshot", "--force", name)...)
		if got.code != command.ExitUsage || !strings.Contains(got.stderr, name+": exists, and is no regular file") {
			t.Errorf("exit code %d, %s", got.code, got.stderr)
		}
		if st, err := os.Lstat(name); err != nil || st.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestSupervisorSpace(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	r.Server.Admin.Members, r.Server.Admin.Disarmed = threeMembers(), []string{"NOSPACE of s2"}
	got := run(t, nil, r.Flags("supervisor", "defrag", "--all", "--compact")...)
	if want := "s2: 3.0 MiB before, 1.0 MiB after\ns1: 3.0 MiB before, 1.0 MiB after\n"; got.code != 0 || got.stdout != want {
		t.Errorf("exit code %d, %s%s", got.code, got.stdout, got.stderr)
	}
	if asked := strings.Join(r.Server.Admin.Asked, "\n"); strings.Count(asked, "compact:true") != 1 {
		t.Errorf("the leader comes last, and one compaction is for all:\n%s", asked)
	}
	if got := run(t, nil, r.Flags("supervisor", "alarms", "--disarm")...); got.code != 0 || got.stdout != "disarmed NOSPACE of s2\n" {
		t.Errorf("exit code %d, %s%s", got.code, got.stdout, got.stderr)
	}
	if got := run(t, nil, r.Flags("supervisor", "remove", "s2")...); got.code != 0 || !strings.Contains(got.stdout, "s2 is out") {
		t.Errorf("exit code %d, %s%s", got.code, got.stdout, got.stderr)
	}
}

func TestSupervisorRefuses(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x1x1"))
	r.Server.Admin.Members = threeMembers()
	for _, tc := range []struct {
		code int
		want string
		err  error
		args []string
	}{
		{command.ExitUsage, "want list, add", nil, []string{"supervisor"}},
		{command.ExitUsage, "supervisor fly: want list", nil, []string{"supervisor", "fly"}},
		{command.ExitUsage, "NAME", nil, []string{"supervisor", "replace"}},
		{command.ExitUsage, "NAME", nil, []string{"supervisor", "remove"}},
		{command.ExitUsage, "FILE", nil, []string{"supervisor", "snapshot"}},
		{command.ExitUsage, "want 1s to 1h", nil, []string{"supervisor", "replace", "s2", "--wait", "0"}},
		{command.ExitUsage, "want 1s to 1h", nil, []string{"supervisor", "add", "--wait", "2h"}},
		{command.ExitUsage, "want both NAME and --peer-url", nil, []string{"supervisor", "add", "s4"}},
		{command.ExitUsage, "NAME and --peer-url are missing", nil, []string{"supervisor", "add"}},
		{command.ExitUsage, "either NAME or --all", nil, []string{"supervisor", "defrag"}},
		{command.ExitUsage, "either NAME or --all", nil, []string{"supervisor", "defrag", "s1", "--all"}},
		{command.ExitFailure, "there would be no quorum", status.Error(codes.FailedPrecondition, "there would be no quorum"),
			[]string{"supervisor", "remove", "s1"}},
		{command.ExitUsage, "not among", status.Error(codes.NotFound, "s9: not among"), []string{"supervisor", "remove", "s9"}},
		{command.ExitFailure, "may not call", status.Error(codes.PermissionDenied, "may not call it"), []string{"supervisor", "list"}},
	} {
		r.Server.Admin.Err = tc.err
		if got := run(t, nil, r.Flags(tc.args...)...); got.code != tc.code || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("%v: exit code %d, %s; want %d, %s", tc.args, got.code, got.stderr, tc.code, tc.want)
		}
	}
}
