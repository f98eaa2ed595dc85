package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/pkg/fault"
)

// shortNames are names whose letters are in most texts.
var shortNames = []string{"a", "e", "n", "o", "s", "so"}

// TestShortNamesOfNodesGiveOneLine: nodes with short names that fail for one reason give one line in the log.
func TestShortNamesOfNodesGiveOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mapped{states: map[fault.NodeID]NodeState{}}
		var log bytes.Buffer
		s, e := inMemory(t, m, 0, 0, http.StatusOK, &log)
		s.answer = func(context.Context, string) int { return http.StatusForbidden }
		for _, name := range shortNames {
			s.nodes[name] = &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
				ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "0"}}
		}
		stop := keepIn(t, e, m)
		for _, name := range shortNames { // each is the first to fail in some round
			m.set(ready, name)
			time.Sleep(7 * time.Second)
		}
		time.Sleep(10 * time.Minute)
		stop()
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines in the log: want one for one reason:\n%.2000s", n, log.String())
		}
	})
}

// TestShortNamesOfFaultsGiveOneLine: Fault objects with short names that fail for one reason give one line in the log.
func TestShortNamesOfFaultsGiveOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src := &memoryFaults{answer: func(context.Context, string) int { return http.StatusForbidden }}, &incidents{}
		var log bytes.Buffer
		f := faultsInMemory(t, s, src, &log)
		stop := runFaults(t, f)
		var list []Fault
		for _, name := range shortNames {
			list = append([]Fault{aFault(name)}, list...)
			src.set(list...)
			time.Sleep(3 * time.Second)
		}
		time.Sleep(10 * time.Minute)
		stop()
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines in the log: want one for one reason:\n%.2000s", n, log.String())
		}
	})
}

// TestNewsNamesEachReasonOnce: a reason is news until it is gone from all objects. The object's own name makes no difference, parts of
// other words do.
func TestNewsNamesEachReasonOnce(t *testing.T) {
	r, now := newRetries(), time.Unix(0, 0)
	news := func(want ...string) {
		t.Helper()
		var got []string
		for _, err := range r.news(nil) {
			got = append(got, err.Error())
		}
		if !slices.Equal(got, want) {
			t.Errorf("news %q: want %q", got, want)
		}
	}
	denied := func(name string) { r.failed(name, fmt.Errorf("faults %q: denied by n1.example at n.", name), now) }
	denied("n")
	denied("n1")
	denied("n.x")
	news(`faults "n": denied by n1.example at n.`, `faults "n.x": denied by n1.example at n.`) // its reason has the word n
	denied("o")
	news()
	r.failed("n1", errors.New("faults: denied by 1.example"), now)
	news("faults: denied by 1.example")
	r.keep(func(name string) bool { return name == "n" })
	news()
	denied("o")
	news(`faults "o": denied by n1.example at n.`)
	if got := withoutName("see n/status, n. and n1", "n"); got != "see /status,  and n1" {
		t.Errorf("%q", got)
	}
}

// TestServerCannotAskForLongPause: a pause lasts as long as the API server asks, but at most retryMost. A webhook may ask for any time.
func TestServerCannotAskForLongPause(t *testing.T) {
	now := time.Unix(0, 0)
	for asked, want := range map[int]time.Duration{0: retryFirst, 30: 30 * time.Second, 61: retryMost, math.MaxInt32: retryMost} {
		r := newRetries()
		r.failed("a", apierrors.NewTooManyRequests("later", asked), now)
		if got := r.until("a").Sub(now); got != want {
			t.Errorf("%d s asked: a pause of %s, want %s", asked, got, want)
		}
	}
}

// TestServerCannotAskForLongPauseOfAttempt: an attempt tries again after retryMost, even if the API server asks for a longer pause.
func TestServerCannotAskForLongPauseOfAttempt(t *testing.T) {
	for asked, want := range map[int]time.Duration{0: time.Second, 30: 30 * time.Second, 61: retryMost, math.MaxInt32: retryMost} {
		synctest.Test(t, func(t *testing.T) {
			e, begin, tries := &Executor{pacing: usual}, time.Now(), 0
			e.retry(t.Context(), "node", func(*bool) error {
				if tries++; tries == 1 {
					return apierrors.NewTooManyRequests("later", asked)
				}
				return ended{}
			})
			if took := time.Since(begin); took > want || asked > 0 && took < want {
				t.Errorf("%d s asked: tried again after %s, want %s", asked, took, want)
			}
		})
	}
}

// reasons returns the reasons that are in the log.
func reasons(r *retries) string { return strings.Join(slices.Sorted(maps.Keys(r.said)), "; ") }
