package api

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// dearDocuments returns as many documents as allowed, each with the longest allowed condition.
func dearDocuments() string {
	var b strings.Builder
	for i := range policy.MaxDocuments {
		var match strings.Builder
		_, _ = fmt.Fprintf(&match, `fault.component == "memory%d"`, i)
		for match.Len() < policy.MaxMatch-40 {
			match.WriteString(` || fault.state == "FAILED"`)
		}
		b.WriteString("---" + document(fmt.Sprintf("p%d", i), `fault.component == "memory" && fault.state == "FAILED"`, match.String()))
	}
	return strings.TrimPrefix(b.String(), "---")
}

func checked(ctx context.Context, r *Responses, documents string) (time.Duration, codes.Code) {
	began := time.Now()
	_, err := r.CheckPolicies(ctx, &lofamov1.CheckPoliciesRequest{Documents: documents})
	return time.Since(began), status.Code(err)
}

// TestCheckOfPoliciesEndsWithItsCall cancels a check in its middle: it must stop compiling. A single measurement on a busy machine proves
// nothing, so one of some must show that.
func TestCheckOfPoliciesEndsWithItsCall(t *testing.T) {
	r, _ := onEtcd(t, newMemory(t, twoApprovals))
	dear := dearDocuments()
	for i := range 10 {
		// A new subject each time: one subject may use 2 s of checks, which are only a few on a busy machine.
		whole, code := checked(callOf(t, pki.RoleViewer, fmt.Sprint("measured", i)), r, dear)
		if code != codes.OK {
			t.Fatal(code)
		}
		ctx, cancel := context.WithTimeout(callOf(t, pki.RoleViewer, fmt.Sprint("ann", i)), whole/10)
		took, code := checked(ctx, r, dear)
		cancel()
		t.Logf("a whole check takes %v, one that is cancelled after a tenth of that %v: %v", whole, took, code)
		if code == codes.DeadlineExceeded && took <= whole/2 {
			return
		}
	}
	t.Error("no check ended with DeadlineExceeded soon after a tenth of its time")
}

// TestViewerChecksOnePolicyFileAtATime requests eight checks at once: seven are refused, and another subject's
// succeeds.
func TestViewerChecksOnePolicyFileAtATime(t *testing.T) {
	r, _ := onEtcd(t, newMemory(t, twoApprovals))
	dear := dearDocuments()
	var mu sync.Mutex
	got := map[codes.Code]int{}
	var all sync.WaitGroup
	for range 8 {
		ctx := callOf(t, pki.RoleViewer, "ann")
		all.Go(func() {
			_, code := checked(ctx, r, dear)
			mu.Lock()
			defer mu.Unlock()
			got[code]++
		})
	}
	all.Wait()
	served := got[codes.OK] + got[codes.DeadlineExceeded] // a busy machine may exceed the time limit of one check
	if served < 1 || served > 2 || served+got[codes.ResourceExhausted] != 8 {
		t.Errorf("eight checks at once: %v: want one, or two one after the other, and RESOURCE_EXHAUSTED for the others", got)
	}
	if _, code := checked(callOf(t, pki.RoleOperator, "bob"), r, document("small")); code != codes.OK && code != codes.DeadlineExceeded {
		t.Errorf("somebody else's check: %v", code)
	}
}

// TestViewersChecksAreBoundedInTime: one subject requests expensive checks all the time. It gets a few seconds of a
// core, and then a tenth of one.
func TestViewersChecksAreBoundedInTime(t *testing.T) {
	r, _ := onEtcd(t, newMemory(t, twoApprovals))
	dear := dearDocuments()
	began, used, longest, served := time.Now(), time.Duration(0), time.Duration(0), 0
	for range 200 {
		took, code := checked(callOf(t, pki.RoleViewer, "ann"), r, dear)
		if code == codes.ResourceExhausted {
			break
		}
		if code != codes.OK && code != codes.DeadlineExceeded { // a busy machine may exceed the time limit of one check
			t.Fatal(code)
		}
		used, longest, served = used+took, max(longest, took), served+1
	}
	most := checkBurst + time.Duration(checkShare*float64(time.Since(began))) + longest // the last check begins if any budget is left
	t.Logf("%d checks in %v, then refused", served, used)
	if served == 200 || used > most {
		t.Errorf("%d checks of one subject took %v: want at most %v, and then a refusal", served, used, most)
	}
	if _, code := checked(callOf(t, pki.RoleOperator, "bob"), r, document("small")); code != codes.OK {
		t.Errorf("somebody else's check: %v", code)
	}
}

// TestLongCheckIsChargedInFull: a check that takes longer than the burst, as on a busy machine, is followed by a wait for all of its time.
func TestLongCheckIsChargedInFull(t *testing.T) {
	c, now := newChecks(), time.Now()
	is, err := c.enter("ann", now)
	if err != nil {
		t.Fatal(err)
	}
	c.leave(is, 3*checkBurst)
	wait := time.Duration(2 / checkShare * float64(checkBurst)) // for what the check took beyond the burst
	if _, err := c.enter("ann", now.Add(wait/2)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("after half of the wait: %v", err)
	}
	if _, err := c.enter("ann", now.Add(wait+time.Minute)); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}
