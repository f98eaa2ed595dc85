//go:build lofamo_failpoint

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/account"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// rounds is the number of kills and pauses at each passage of a point by an action of any kind. With 0, some kinds run
// once, at the first passage only.
var rounds = flag.Int("kubernetes.rounds", 0, "how often leaders are killed and paused each time that an act passes by a point")

// leader is a separate process that makes one attempt.
type leader struct {
	t    *testing.T
	dir  string
	cmd  *exec.Cmd
	done chan error
}

// lead starts a process that makes the attempt, with a failpoint armed.
func lead(t *testing.T, j executor.Job, o failpoint.Order) *leader {
	t.Helper()
	l := &leader{t: t, dir: t.TempDir(), done: make(chan error, 1)}
	s := cluster(t)
	if err := s.Kubeconfig(filepath.Join(l.dir, "kubeconfig"), s.Addr, serviceToken(t)); err != nil {
		t.Fatal(err)
	}
	l.write(jobFile, j)
	l.write(failpoint.File("kubernetes"), []failpoint.Order{o})
	l.fence(j.Token)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l.cmd = exec.Command(self)
	l.cmd.Env = append(os.Environ(), asChild+"="+l.dir)
	l.cmd.Stderr = t.Output()
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cmd.Process.Kill() })
	return l
}

func (l *leader) write(name string, v any) {
	l.t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(filepath.Join(l.dir, name), b, 0o600)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// fence sets the store's answer. It replaces the whole file, because the child may read it at any time.
func (l *leader) fence(token uint64) {
	l.t.Helper()
	l.write(fenceFile+".new", token)
	if err := os.Rename(filepath.Join(l.dir, fenceFile+".new"), filepath.Join(l.dir, fenceFile)); err != nil {
		l.t.Fatal(err)
	}
}

// stopped waits until the process is stopped. It returns false if the process has ended without reaching the point.
func (l *leader) stopped() bool {
	l.t.Helper()
	is, err := failpoint.Stopped(l.cmd.Process.Pid)
	if err != nil {
		l.t.Fatal(err)
	}
	return is
}

func (l *leader) goOn() {
	l.t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		l.t.Fatal(err)
	}
}

// end waits for the process to end and returns the result of its attempt. ended is false if the process was killed
// first.
func (l *leader) end() (r executor.Result, ended bool) {
	l.t.Helper()
	go func() { l.done <- l.cmd.Wait() }()
	select {
	case <-l.done:
	case <-time.After(3 * time.Minute):
		l.t.Fatal("the process does not end")
	}
	b, err := os.ReadFile(filepath.Join(l.dir, endFile))
	if errors.Is(err, fs.ErrNotExist) {
		if s, ok := l.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
			l.t.Fatalf("it ended without a result, and was not killed: %s", l.cmd.ProcessState)
		}
		return r, false
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return r, true
}

// scene is one action on its own node.
type scene struct {
	t      *testing.T
	a      act
	name   string
	before string
	j      executor.Job
	told   *account.Account
}

// pods is the number of pods on a node to be drained.
const pods = 2

func newScene(t *testing.T, a act, told *account.Account) *scene {
	t.Helper()
	s := &scene{t: t, a: a, name: aNode(t), told: told}
	if a.kind == response.KubernetesDrain {
		for range pods {
			createPod(t, s.name, "", "")
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := kubelet(t, ctx, s.name)
		t.Cleanup(func() { cancel(); ended() })
	}
	s.before = state(theNode(t, s.name))
	s.j = a.job(responseID(), s.name)
	return s
}

// next makes the next leader's attempt, which must succeed.
func (s *scene) next() {
	s.t.Helper()
	s.j = again(under(s.j.Token+1, s.j))
	s.quietly(s.j)
}

func (s *scene) quietly(j executor.Job) {
	s.t.Helper()
	want(s.t, newExecutor(s.t, Config{}, nil).Do(context.Background(), j), response.Succeeded, "")
}

// stands fails the test unless the effect of the action is present exactly once.
func (s *scene) stands(what string) {
	s.t.Helper()
	n := theNode(s.t, s.name)
	switch {
	case s.a.kind == response.KubernetesEvent:
		if got := s.events(); got != 1 {
			s.t.Errorf("%s: %d events", what, got)
		}
	case s.j.Undo:
		if diff := cmp.Diff(s.before, state(n)); diff != "" {
			s.t.Errorf("%s: put back:\n%s", what, diff)
		}
	case withoutMarks(n) != s.a.shows:
		s.t.Errorf("%s: %q", what, withoutMarks(n))
	}
	if s.a.kind == response.KubernetesDrain && len(podsOf(s.t, s.name)) > 0 {
		s.t.Errorf("%s: pods are left", what)
	}
}

func (s *scene) events() int {
	s.t.Helper()
	var list corev1.EventList
	if err := json.Unmarshal(admin(s.t, http.MethodGet, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid="+s.name,
		"", ""), &list); err != nil {
		s.t.Fatal(err)
	}
	return len(list.Items)
}

// traces returns all effects as text; another text means another effect.
func (s *scene) traces() string {
	s.t.Helper()
	var list corev1.PodList
	if err := json.Unmarshal(admin(s.t, http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName="+s.name, "", ""), &list); err != nil {
		s.t.Fatal(err)
	}
	left := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	return fmt.Sprintf("node version %s, %d events, %d pods that stay", theNode(s.t, s.name).ResourceVersion, s.events(), len(left))
}

func (s *scene) asked() string {
	if s.j.Undo {
		return string(s.a.kind) + ", back"
	}
	return string(s.a.kind)
}

func (s *scene) note(became, why string, args ...any) {
	s.told.Note(account.Entry{Asked: s.asked(), Became: became, Why: fmt.Sprintf(why, args...)})
}

// everyPoint calls each for every kind and every failpoint that it passes, once for each passage, until each reports
// that the action did not pass so often.
func everyPoint(t *testing.T, each func(t *testing.T, a act, o failpoint.Order) bool) {
	t.Helper()
	cluster(t) // without one every part would be skipped, and nothing counted
	event := act{kind: response.KubernetesEvent, parameters: map[string]string{"reason": "LofamoFault"}}
	all := append(acts(), event)
	// one for each way to write: an apply to the status, a merge patch, an apply to the node with evictions, and a request
	// that does not write to the node
	if *rounds == 0 {
		all = []act{acts()[0], acts()[3], acts()[5], event}
	}
	t.Run("all", func(t *testing.T) {
		for _, a := range all {
			for _, p := range failpoint.KubernetesPoints() {
				if (p == failpoint.KubernetesEvict || p == failpoint.KubernetesEvicted) && a.kind != response.KubernetesDrain {
					continue
				}
				t.Run(fmt.Sprintf("%s at %s", a.kind, p), func(t *testing.T) {
					t.Parallel()
					for range max(1, *rounds) {
						for n := 0; each(t, a, failpoint.Order{Point: p, Skip: n}) && *rounds > 0; n++ {
						}
					}
				})
			}
		}
	})
}

// TestKilledAtEveryStep kills the leader's process at every step of every kind, do and undo. The next leader's attempt
// completes the action once, and undoing it restores the earlier state.
func TestKilledAtEveryStep(t *testing.T) {
	var kills atomic.Int64
	var told account.Account
	everyPoint(t, func(t *testing.T, a act, o failpoint.Order) bool {
		o.Action = failpoint.Crash.String()
		s, was := newScene(t, a, &told), 0
		once := func() {
			what := fmt.Sprintf("%s, killed at %s after %d", s.asked(), o.Point, o.Skip)
			r, ended := lead(t, s.j, o).end()
			if ended {
				want(t, r, response.Succeeded, "")
			} else {
				was++
				s.next()
				s.note("done once", "its leader was killed, and the next one went on")
			}
			s.stands(what)
		}
		once()
		if a.kind != response.KubernetesEvent {
			s.j = undo(s.j)
			once()
		}
		kills.Add(int64(was))
		return was > 0
	})
	t.Logf("%d leaders were killed; what was asked, and what became of it:\n%s", kills.Load(), &told)
	if kills.Load() < 35 {
		t.Errorf("%d kills: the test kills too little", kills.Load())
	}
}

// TestPausedAtEveryStep stops the leader's process at every step of every kind until another leader exists and has, or
// has not, acted on the node. Then the process continues and must send nothing more. One step is the exception, and the
// window that remains: between the last leadership check and the request. There a write still takes effect if the
// node is unchanged since it was read, and so does the eviction of one pod.
func TestPausedAtEveryStep(t *testing.T) {
	var pauses, window atomic.Int64
	var told account.Account
	everyPoint(t, func(t *testing.T, a act, o failpoint.Order) bool {
		o.Action = failpoint.Stop.String()
		came := false
		for _, back := range []bool{false, true} {
			for _, touched := range []bool{false, true} {
				if back && a.kind == response.KubernetesEvent {
					continue
				}
				paused, late := pauseOnce(newScene(t, a, &told), o, back, touched)
				if paused {
					came = true
					pauses.Add(1)
				}
				if late {
					window.Add(1)
				}
			}
		}
		return came
	})
	t.Logf("%d leaders stood still, %d effects came in the window; what was asked, and what became of it:\n%s", pauses.Load(),
		window.Load(), &told)
	if pauses.Load() < 70 || window.Load() == 0 {
		t.Errorf("%d pauses, %d in the window: the test pauses too little", pauses.Load(), window.Load())
	}
}

// pauseOnce stops a leader during do or undo. It reports whether the leader reached the point, and whether anything
// took effect after another leader existed.
func pauseOnce(s *scene, o failpoint.Order, back, touched bool) (paused, late bool) {
	t := s.t
	if back {
		s.quietly(s.j)
		s.j = undo(s.j)
	}
	what := fmt.Sprintf("%s, paused at %s after %d, touched %t", s.asked(), o.Point, o.Skip, touched)
	l := lead(t, s.j, o)
	if !l.stopped() {
		r, _ := l.end()
		want(t, r, response.Succeeded, "")
		return false, false
	}
	l.fence(s.j.Token + 1)
	elsewhere := "has not been at the node"
	if touched {
		s.next()
		elsewhere = "has acted on the node"
	}
	before := s.traces()
	over := time.NewTimer(childSure + childSure/4) // else the leadership check would still be fresh enough
	<-over.C
	l.goOn()
	r, ended := l.end()
	if !ended {
		t.Fatalf("%s: killed", what)
	}
	late = s.traces() != before
	sent := o.Point == failpoint.KubernetesWritten || o.Point == failpoint.KubernetesEvicted
	switch open := o.Point == failpoint.KubernetesSend && !touched; {
	case late && !open:
		t.Errorf("%s: an effect under a stale token: %s, before %s; %+v", what, s.traces(), before, r)
	case late:
		s.note("done late", "its leader stood still as the request left, and another one %s", elsewhere)
	case r.Outcome == response.StaleToken && strings.Contains(r.Detail, "has been seen"):
		s.note("refused", "its leader stood still, and another one %s: a higher token stands there", elsewhere)
	case r.Outcome == response.StaleToken:
		s.note("refused", "its leader stood still, and another one %s: the store knows a higher token", elsewhere)
	case sent && r.Outcome == response.Succeeded:
		s.note("done before", "its leader stood still after it had sent the request")
	case touched && r.Outcome == response.Succeeded && s.a.kind == response.KubernetesEvent:
		s.note("refused", "its leader stood still, and another one has written the event: there is one of its name")
	default:
		t.Errorf("%s: %+v", what, r)
	}
	// No intended effect is lost.
	s.next()
	s.stands(what)
	if !s.j.Undo && s.a.kind != response.KubernetesEvent {
		s.j = undo(s.j)
		s.quietly(s.j)
		s.stands(what)
	}
	return true, late
}
