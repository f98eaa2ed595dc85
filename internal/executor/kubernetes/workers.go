package kubernetes

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
)

// workersMost is the maximum number of concurrent changes. At most workersRetries of them are retries, so that objects whose requests
// always hang leave workers to the others.
const workersMost, workersRetries = 8, 4

// change brings one object to its wanted form, or removes it. A separate goroutine runs do. After a success, the owner of the workers
// calls the returned function, unless it is nil.
type change struct {
	name string
	do   func(context.Context) (then func(), err error)
}

// changeResult is the end of a change.
type changeResult struct {
	name string
	then func()
	err  error
}

// workers change several objects at a time, so that a request that hangs delays no other object. One goroutine owns them.
type workers struct {
	failing *retries             // objects whose last change failed
	begun   map[string]time.Time // when the last change of each object began
	busy    map[string]bool      // objects that change now; true: the last change failed
	written map[string]written   // the last write of each object
	results chan changeResult
}

// written is the last write of an object: its status, and the object's resource version after the write.
type written struct {
	status  any
	version string
}

func newWorkers() *workers {
	return &workers{failing: newRetries(), begun: map[string]time.Time{}, busy: map[string]bool{},
		written: map[string]written{}, results: make(chan changeResult, workersMost)}
}

// keepOnly forgets the failures of objects that need no change. It also forgets the time of the last change, and the last write, of objects
// that are not wanted.
func (w *workers) keepOnly(needed, wanted map[string]bool) {
	w.failing.keep(func(name string) bool { return needed[name] })
	maps.DeleteFunc(w.begun, func(name string, _ time.Time) bool { return !wanted[name] })
	maps.DeleteFunc(w.written, func(name string, _ written) bool { return !wanted[name] })
}

// wrote returns a function that ends a change: it records the written status and the object's resource version after the write.
func (w *workers) wrote(name string, status any, version string) func() {
	return func() { w.written[name] = written{status, version} }
}

// repeats reports whether the last write of an object had the status, and the object still has the version of that write. The API server
// gets each status once even if it drops a field, as with an earlier definition, if a webhook changes the object, or if somebody else owns
// a field that the status leaves out.
func (w *workers) repeats(name string, status any, version string) bool {
	last, is := w.written[name]
	return is && last.version == version && equality.Semantic.DeepEqual(last.status, status)
}

// leastRecent sorts changes: the object whose last change began first comes first.
func (w *workers) leastRecent(list []change) {
	slices.SortStableFunc(list, func(a, b change) int { return w.begun[a.name].Compare(w.begun[b.name]) })
}

// start begins changes in their order, as far as workers are free, and waits for none. Objects whose last change failed come last, and only
// after their pauses. start reports whether an object whose last change has not failed waits for a worker.
func (w *workers) start(ctx context.Context, list []change, now time.Time) (waiting bool) {
	list = slices.DeleteFunc(list, func(c change) bool {
		_, busy := w.busy[c.name]
		return busy || now.Before(w.failing.until(c.name))
	})
	slices.SortStableFunc(list, func(a, b change) int { return w.failing.until(a.name).Compare(w.failing.until(b.name)) })
	for _, c := range list {
		if !w.begin(ctx, c) { // nor would it begin those after it
			return !w.failing.has(c.name)
		}
	}
	return false
}

// begin starts a change, unless no worker is free; then it returns false.
func (w *workers) begin(ctx context.Context, c change) bool {
	again, retries := w.failing.has(c.name), 0
	for _, failed := range w.busy {
		retries += btoi(failed)
	}
	if len(w.busy) >= workersMost || again && retries >= workersRetries {
		return false
	}
	w.busy[c.name], w.begun[c.name] = again, time.Now()
	go func() { // stop waits for the result
		then, err := c.do(ctx)
		w.results <- changeResult{c.name, then, err}
	}()
	return true
}

// settle takes the result of a change.
func (w *workers) settle(ctx context.Context, r changeResult) {
	delete(w.busy, r.name)
	switch {
	case r.err == nil:
		w.failing.succeeded(r.name)
		if r.then != nil {
			r.then()
		}
	case ctx.Err() == nil:
		w.failing.failed(r.name, r.err, time.Now())
	}
}

// settleAll takes the results of all changes that have ended.
func (w *workers) settleAll(ctx context.Context) {
	for len(w.results) > 0 {
		w.settle(ctx, <-w.results)
	}
}

// idle waits for a reason for another pass, at most for the given time. Reasons are news of the wanted state (nil: never), a change of an
// object, and the end of a change, because its object may have changed meanwhile.
func (w *workers) idle(ctx context.Context, most time.Duration, news, changed <-chan struct{}) {
	look := time.NewTimer(most)
	defer look.Stop()
	select {
	case r := <-w.results:
		w.settle(ctx, r)
	case <-ctx.Done():
	case <-news:
	case <-changed:
	case <-look.C:
	}
}

// stop waits for all changes after the end of their context, and drops their results.
func (w *workers) stop() {
	for len(w.busy) > 0 {
		delete(w.busy, (<-w.results).name)
	}
}
