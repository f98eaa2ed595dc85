package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/actions"
)

// throttlingKernel simulates drivers/cpufreq/cpufreq.c on a recorded tree: a write to scaling_max_freq is a request, and a work
// queue later updates the value read to the lowest of all requests.
type throttlingKernel struct {
	w    *actionWorld
	work sync.WaitGroup

	mu      sync.Mutex
	request map[string]uint64 // by policy, kHz
	cooling uint64            // 0: none
	floor   uint64            // scaling_min_freq; 0: below everything
	slow    bool              // updates wait until a test releases them
	writes  int
}

func (w *actionWorld) kernel() *throttlingKernel {
	k := &throttlingKernel{w: w, request: map[string]uint64{}}
	for _, f := range []string{"policy0", "policy4"} {
		khz, err := strconv.ParseUint(w.limit(f), 10, 64)
		if err != nil {
			w.t.Fatal(err)
		}
		k.request[f] = khz
	}
	w.store = func(to actions.Write) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.request[to.Policy] = to.KHz
		k.writes++
		k.work.Go(func() {
			time.Sleep(awaitLook + awaitLook/2) // the work queue is late: reads at once return the former value
			k.mu.Lock()
			defer k.mu.Unlock()
			if !k.slow {
				k.publish(to.Policy)
			}
		})
		return nil
	}
	w.t.Cleanup(k.work.Wait)
	return k
}

func (k *throttlingKernel) file(policy string) string {
	return filepath.Join(k.w.cpufreq(), policy, "scaling_max_freq")
}

// publish replaces the file, so that readers never see a partial write.
func (k *throttlingKernel) publish(policy string) {
	khz := k.request[policy]
	if k.cooling != 0 {
		khz = min(khz, k.cooling)
	}
	khz = max(khz, k.floor)
	next := filepath.Join(k.w.t.TempDir(), "next")
	if err := os.WriteFile(next, []byte(strconv.FormatUint(khz, 10)+"\n"), 0o600); err != nil {
		k.w.t.Error(err)
	}
	if err := os.Rename(next, k.file(policy)); err != nil {
		k.w.t.Error(err)
	}
}

// cool simulates a limit by a cooling device of the kernel; 0: it is at rest.
func (k *throttlingKernel) cool(khz uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cooling = khz
	state := "0\n"
	if khz != 0 {
		state = "3\n"
	}
	if err := os.WriteFile(filepath.Join(k.w.sysfs, "class/thermal/cooling_device2/cur_state"), []byte(state), 0o600); err != nil {
		k.w.t.Fatal(err)
	}
	for policy := range k.request {
		k.publish(policy)
	}
}

func (k *throttlingKernel) want(p0, p4 uint64) {
	k.w.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if is0, is4 := k.request["policy0"], k.request["policy4"]; is0 != p0 || is4 != p4 {
		k.w.t.Fatalf("requested: %d and %d: want %d and %d", is0, is4, p0, p4)
	}
}

// set simulates a person's write.
func (k *throttlingKernel) set(policy string, khz uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.request[policy] = khz
	k.publish(policy)
}

// The machine throttles, before a limit or below it: the undo restores the earlier request, not the throttled value.
func TestUndoRestoresRequestNotThrottledValue(t *testing.T) {
	w := newActionWorld(t, nil) // the runner has seen the requested values
	k := w.kernel()
	percent := func(p string) *actions.Order {
		return w.order(actions.KindLimitFrequency, map[string]string{"percent": p})
	}
	k.cool(1_700_000)
	o := percent("50")
	w.want(w.make(o), actions.Done, "2 of 2 limited")
	k.want(2_400_000, 1_800_000)
	k.cool(0)
	k.cool(1_200_000)
	w.want(w.make(nextOrder(o, true)), actions.Done, "2 put back")
	k.want(4_800_000, 3_600_000)
	k.cool(0)

	o = percent("50")
	w.want(w.make(o), actions.Done, "2 of 2 limited")
	k.set("policy4", 1_000_000)
	w.want(w.make(nextOrder(o, true)), actions.Done, "1 put back, 1 left")
	k.want(4_800_000, 1_000_000)
	k.set("policy4", 3_600_000)

	k.cool(1_700_000)
	if err := os.Remove(filepath.Join(w.dir, actions.File)); err != nil { // the requested values are forgotten
		t.Fatal(err)
	}
	writes := k.writes
	w.want(w.make(percent("50")), actions.Unchanged, "the kernel throttles, and the earlier setting is unknown: policy0 at 1700000")
	if k.writes != writes {
		t.Error("something was written")
	}
}

// A limit that is held up is not done, however often it is checked, and is put back.
func TestHeldUpByFloor(t *testing.T) {
	w := newActionWorld(t, nil)
	k := w.kernel()
	k.floor = 2_600_000
	o := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	w.want(w.make(o), actions.Partly, "2600000 of 4800000 kHz, though 2400000 was requested")
	again := nextOrder(o, false)
	again.Recheck = true
	w.want(w.make(again), actions.Partly, "2600000 of 4800000 kHz, though 2400000 was requested")
	lower := w.order(actions.KindLimitFrequency, map[string]string{"percent": "45"}) // no value that is read changes
	w.want(w.make(lower), actions.Partly, "though 2160000 was requested")
	k.want(2_160_000, 1_620_000)
	w.want(w.make(nextOrder(lower, true)), actions.Done, "put back")
	k.want(2_400_000, 1_800_000)
	w.want(w.make(nextOrder(again, true)), actions.Done, "2 put back")
	k.want(4_800_000, 3_600_000)
}

// A late kernel: a value read before the update was not requested, and a value that a person sets later between the two
// is the person's.
func TestLateKernelValueIsNotMistakenForPersons(t *testing.T) {
	w := newActionWorld(t, nil)
	k := w.kernel()
	k.slow = true
	o := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	w.want(w.make(o), actions.Partly, "though 2400000 was requested")
	k.work.Wait()
	k.mu.Lock()
	k.slow = false
	k.publish("policy0")
	k.publish("policy4")
	k.mu.Unlock()
	k.set("policy0", 3_600_000)
	w.want(w.make(nextOrder(o, true)), actions.Done, "1 put back, 1 left")
	k.want(3_600_000, 3_600_000)
}

// A limit that cannot be written at all owns nothing: the end of the next one restores everything.
func TestUnwrittenLimitOwnsNothing(t *testing.T) {
	w := newActionWorld(t, nil)
	file := filepath.Join(w.cpufreq(), "policy0", "scaling_max_freq")
	fails := func(at int) { // as the kernel refuses writes while a processor is being taken away
		w.at = func() {
			if at--; at == 0 {
				if err := os.Rename(file, file+".away"); err != nil {
					t.Error(err)
				}
			}
		}
	}
	back := func() {
		w.at = nil
		if err := os.Rename(file+".away", file); err != nil {
			t.Fatal(err)
		}
	}
	a := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	fails(2)
	w.want(w.make(a), actions.Unchanged, "limit of frequency: open")
	back()
	if l := w.limits(); len(l) != 0 {
		t.Errorf("owned by nobody's limit: %+v", l)
	}
	b := w.order(actions.KindLimitFrequency, map[string]string{"percent": "80"})
	w.want(w.make(b), actions.Done, "")
	fails(2)
	w.want(w.make(nextOrder(b, true)), actions.Partly, "1 of 2 set: limit of frequency: open")
	back()
	w.want(w.make(nextOrder(nextOrder(b, true), true)), actions.Done, "1 put back")
	if l := w.limits(); len(l) != 0 || w.limit("policy0") != "4800000" || w.limit("policy4") != "3600000" {
		t.Errorf("%+v, %s, %s", l, w.limit("policy0"), w.limit("policy4"))
	}
}

// limits returns the limits in the ledger.
func (w *actionWorld) limits() (out []actions.Limit) {
	w.t.Helper()
	if err := w.change(func(l *actions.Ledger) (bool, error) { out = l.Limits; return false, nil }); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// affected replaces the list of the online processors of policy4.
func (w *actionWorld) affected(processors string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.cpufreq(), "policy4", "affected_cpus"), []byte(processors+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// The other processors are put back while one is offline. The kernel keeps its limit, so the ledger does too, and a later undo ends it.
func TestOfflineProcessorDoesNotBlockUndo(t *testing.T) {
	w := newActionWorld(t, nil)
	o := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	w.want(w.make(o), actions.Done, "2 of 2 limited")
	w.affected("")
	o = nextOrder(o, true)
	w.want(w.make(o), actions.Partly, "1 put back, 1 stay limited, because their processors are offline")
	if l := w.limits(); w.limit("policy0") != "4800000" || w.limit("policy4") != "1800000" || len(l) != 1 || l[0].Policy != "policy4" {
		t.Errorf("%s, %s, %+v", w.limit("policy0"), w.limit("policy4"), l)
	}
	other := w.order(actions.KindLimitFrequency, map[string]string{"percent": "80"})
	w.want(w.make(other), actions.Done, "1 of 1 limited")
	w.affected("4")
	w.want(w.make(nextOrder(o, true)), actions.Done, "1 put back")
	w.want(w.make(nextOrder(other, true)), actions.Done, "1 put back")
	if l := w.limits(); w.limit("policy0") != "4800000" || w.limit("policy4") != "3600000" || len(l) != 0 {
		t.Errorf("%s, %s, %+v", w.limit("policy0"), w.limit("policy4"), l)
	}
}

// A write that the kernel refuses does not keep an undo from the other policies.
func TestUndoGoesOnAfterFailedWrite(t *testing.T) {
	w := newActionWorld(t, nil)
	o := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	w.want(w.make(o), actions.Done, "2 of 2 limited")
	store := w.store
	w.store = func(to actions.Write) error {
		if to.Policy == "policy0" {
			return unix.EBUSY
		}
		return store(to)
	}
	o = nextOrder(o, true)
	w.want(w.make(o), actions.Partly, "1 of 2 set: device or resource busy")
	if w.limit("policy0") != "2400000" || w.limit("policy4") != "3600000" {
		t.Errorf("%s, %s", w.limit("policy0"), w.limit("policy4"))
	}
	w.store = store
	w.want(w.make(nextOrder(o, true)), actions.Done, "1 put back")
	if l := w.limits(); w.limit("policy0") != "4800000" || w.limit("policy4") != "3600000" || len(l) != 0 {
		t.Errorf("%s, %s, %+v", w.limit("policy0"), w.limit("policy4"), l)
	}
}

// A daemon that begins while a processor is offline records the frequencies of the others. If it can record none, the log says so.
func TestFrequenciesAreRecordedBesideOfflineProcessor(t *testing.T) {
	w := newActionWorld(t, nil)
	if err := os.Remove(filepath.Join(w.dir, actions.File)); err != nil {
		t.Fatal(err)
	}
	w.affected("")
	w.stop()
	w.begin()
	var seen map[string]uint64
	if err := w.change(func(l *actions.Ledger) (bool, error) { seen = l.Unlimited; return false, nil }); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen["policy0"] != 4_800_000 {
		t.Errorf("recorded: %v", seen)
	}
	var log strings.Builder
	w.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	if err := os.RemoveAll(w.cpufreq()); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.begin()
	if !strings.Contains(log.String(), "cannot record the processors' frequencies") {
		t.Errorf("the log says %q", log.String())
	}
}
