package local_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/jobs"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const another = "run-as-another-user"

func TestMain(m *testing.M) {
	if len(os.Args) > 7 && os.Args[1] == another {
		asOccupier(os.Args[3], os.Args[4:])
		os.Exit(0)
	}
	if len(os.Args) > 3 && os.Args[1] == another {
		fmt.Println(asAnother(os.Args[2], os.Args[3]))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// asAnother performs one operation at a socket and returns its status code.
func asAnother(what, path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	c, err := jobs.Dial(path)
	if err != nil {
		return err.Error()
	}
	switch what {
	case "faults":
		err = c.WatchFaults(ctx, nil, func(jobs.Faults) error { return errEnough })
	case "watch":
		err = c.WatchEureka(ctx, "train", func(jobs.Heard) error { return errEnough })
	case "raise":
		err = c.RaiseEureka(ctx, "train", jobs.Eureka{Topic: "x"})
	case "barrier":
		err = c.Job(jobs.Job{Name: "train", Members: []string{"a"}}).Barrier(ctx, "step")
	}
	if err == errEnough { //nolint:errorlint // as it is
		err = nil
	}
	return status.Code(err).String()
}

// as runs asAnother in a process of another user. The program is under a directory that others may not enter; the process'
// own link to it leads there nevertheless.
func as(t *testing.T, uid uint32, groups []uint32, what, path string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", another, what, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 20_000 + uid, Groups: groups}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// The kernel determines the caller: user, group and supplementary groups of a real process.
func TestKernelIdentifiesCaller(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "only root can be somebody else")
	}
	c := config.DefaultAgent().Jobs
	c.Barrier = []string{"uid:1001", "gid:8002"}
	w := newCluster(t, c, "a")
	for _, tc := range []struct {
		uid    uint32
		groups []uint32
		what   string
		want   string
	}{
		{1001, nil, "faults", "OK"}, {1001, nil, "watch", "OK"}, {1001, nil, "raise", "PermissionDenied"}, {1001, nil, "barrier", "OK"},
		{1002, []uint32{5, 4242}, "raise", "OK"}, // of the socket's group
		{1002, []uint32{5}, "barrier", "PermissionDenied"}, {1002, []uint32{5, 8002}, "barrier", "OK"},
		{0, nil, "raise", "OK"}, {0, nil, "barrier", "PermissionDenied"}, // root is not on that list
	} {
		if got := as(t, tc.uid, tc.groups, tc.what, w.sockets["a"]); got != tc.want {
			t.Errorf("%s by uid %d with groups %d: %s, want %s", tc.what, tc.uid, tc.groups, got, tc.want)
		}
	}
}

// A user who may not open the socket gets an error at once.
func TestUserWithoutAccessIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "only root can be somebody else")
	}
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	if err := os.Chmod(w.sockets["a"], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := as(t, 1001, nil, "faults", w.sockets["a"]); !strings.HasSuffix(got, "permission denied: want a user who may write to it") {
		t.Error(got)
	}
	if got := as(t, 0, nil, "faults", w.sockets["a"]); got != "OK" {
		t.Errorf("root: %s", got)
	}
}

// Forty groups are more than the kernel returns at the first call.
func TestCallerWithManyGroupsIsIdentified(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "only root can be somebody else")
	}
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	var groups []uint32
	for i := range uint32(40) {
		groups = append(groups, 9000+i)
	}
	if got := as(t, 1001, groups, "raise", w.sockets["a"]); got != "PermissionDenied" {
		t.Error(got)
	}
	if got := as(t, 1001, append(groups, 4242), "raise", w.sockets["a"]); got != "OK" {
		t.Error(got)
	}
}

// A job belongs to its user. Another user's job of the same name gets none of its eurekas, except by naming that
// user. Root's eurekas reach all.
func TestJobBelongsToItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "only root can be somebody else")
	}
	w := newCluster(t, config.DefaultAgent().Jobs, "a", "b")
	ctx := ends(t)
	uid := uint32(1001)
	mine := hears(t, ctx, dial(t, w.sockets["b"]), "train")
	theirs, err := api(t, w.sockets["b"]).WatchEureka(ctx, &lofamov1.WatchEurekaRequest{Job: "train", Uid: &uid})
	if err == nil {
		_, err = theirs.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := as(t, uid, []uint32{4242}, "raise", w.sockets["a"]); got != "OK" {
		t.Fatal(got)
	}
	r, err := theirs.Recv()
	if err != nil || r.GetEureka().GetUid() != uid || r.GetEureka().GetNode() != "a" {
		t.Errorf("%v, %v", r, err)
	}
	if err := dial(t, w.sockets["a"]).RaiseEureka(ctx, "train", jobs.Eureka{Topic: "root"}); err != nil {
		t.Fatal(err)
	}
	r, err = theirs.Recv()
	if err != nil || r.GetEureka().GetUid() != 0 || r.GetEureka().GetTopic() != "root" {
		t.Errorf("%v, %v", r, err)
	}
	if h := next(t, mine); h.Eureka == nil || h.Eureka.UID != 0 {
		t.Errorf("root's own job hears %+v before root's word", h.Eureka)
	}
}

// A client without peer credentials is refused.
func TestCallerWithoutCredentialsIsRefused(t *testing.T) {
	p, err := local.NewPolicy(config.DefaultAgent().Jobs, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := local.New(newHalf("a"), p)
	if _, err := s.RaiseEureka(context.Background(), &lofamov1.RaiseEurekaRequest{Job: "train", Topic: "x"}); status.Code(
		err).String() != "PermissionDenied" {
		t.Error(err)
	}
}

// After a restart of the host half, watches start again and report it, and a caller at a barrier continues to wait.
func TestWatchesResumeAfterHostRestart(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, "a", "b")
	ctx := ends(t)
	p, _ := local.NewPolicy(config.DefaultAgent().Jobs, uint32(os.Geteuid()), 4242)
	h := newHalf("c")
	h.torus = w.torus
	path := t.TempDir() + "/local.sock"
	start := func() func() {
		s := local.New(h, p)
		w.set(func() { w.servers["c"] = s })
		stop := listen(t, s, path, 0o600)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		return func() { stop(); cancel(); <-done }
	}
	stop := start()
	c := dial(t, path)
	heard := hears(t, ctx, c, "train")
	faults := make(chan jobs.Faults, 16)
	go func() { _ = c.WatchFaults(ctx, nil, func(f jobs.Faults) error { faults <- f; return nil }) }()
	<-faults
	waited := make(chan error, 2)
	go func() { waited <- c.Job(jobs.Job{Name: "train", Members: members("a", "c")}).Barrier(ctx, "step") }()
	w.awaitAsked(t, 1)
	stop()
	raised := make(chan error, 1)
	go func() { raised <- c.RaiseEureka(ctx, "train", jobs.Eureka{Topic: "while-it-is-away"}) }()
	w.drain()
	stop = start()
	defer func() { stop() }()
	select {
	case err := <-raised:
		if err != nil {
			t.Errorf("raised while it was away: %v", err)
		}
	case <-time.After(bound):
		t.Fatal("nothing is raised")
	}
	if h := next(t, heard); h.Eureka != nil || !h.Again {
		// The eureka may come to a watch that has begun again before it.
		t.Errorf("the watch goes on with %+v", h)
	}
	if f := <-faults; len(f.Nodes) != 2 {
		t.Errorf("faults begin again with %+v", f)
	}
	w.awaitAsked(t, 1)
	late := dial(t, w.sockets["a"])
	go func() {
		waited <- late.Job(jobs.Job{Name: "train", Members: members("a", "c")}).Barrier(ctx, "step")
	}()
	for range 2 {
		if err := <-waited; err != nil {
			t.Errorf("the barrier: %v", err)
		}
	}
}
