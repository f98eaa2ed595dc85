package kubernetes

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Pauses of an object after a failed write. Each further failure doubles the pause.
const retryFirst, retryMost = 5 * time.Second, time.Minute

// retries holds the objects whose last write failed.
type retries struct {
	of   map[string]retry
	said map[string]bool // reasons as of the last call of news
}

// retry is the last failure of an object, and the pause after it.
type retry struct {
	err   error
	until time.Time
	pause time.Duration
}

func newRetries() *retries { return &retries{of: map[string]retry{}} }

// pauseAsked returns the pause that the API server asks for with an error, at most retryMost: a webhook may ask for years.
func pauseAsked(err error) time.Duration {
	asked, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(asked)*time.Second, retryMost)
}

// failed makes an object pause after a failed write, and at least as long as the API server asks, but never longer than retryMost.
func (r *retries) failed(name string, err error, now time.Time) {
	pause := min(max(retryFirst, 2*r.of[name].pause), retryMost)
	r.of[name] = retry{err, now.Add(max(pause, pauseAsked(err))), pause}
}

// succeeded forgets the failures of an object. An object that needs no write counts as well.
func (r *retries) succeeded(name string) { delete(r.of, name) }

// keep forgets all objects but those for which wanted is true.
func (r *retries) keep(wanted func(name string) bool) {
	maps.DeleteFunc(r.of, func(name string, _ retry) bool { return !wanted(name) })
}

// has reports whether the last write of an object failed.
func (r *retries) has(name string) bool { _, failed := r.of[name]; return failed }

// until returns the end of an object's pause; zero without a failure.
func (r *retries) until(name string) time.Time { return r.of[name].until }

// look returns the time until the first pause that lasts beyond now ends, and at most the given one.
func (r *retries) look(now time.Time, most time.Duration) time.Duration {
	for _, failed := range r.of {
		if failed.until.After(now) { // the others have been tried, or wait for something else
			most = min(most, time.Until(failed.until))
		}
	}
	return most
}

// news returns one error for each reason that has come since the last call: of the objects, and of others that belong to no object.
// Errors that differ only in the object's name have one reason.
func (r *retries) news(others ...error) []error {
	var fresh []error
	reasons := map[string]bool{}
	add := func(err error, name string) {
		why := withoutName(err.Error(), name)
		if !reasons[why] && !r.said[why] {
			fresh = append(fresh, err)
		}
		reasons[why] = true
	}
	for _, err := range others {
		if err != nil {
			add(err, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.of)) {
		add(r.of[name].err, name)
	}
	r.said = reasons
	return fresh
}

// listed joins errors to one line.
func listed(errs []error) string {
	var out []string
	for _, err := range errs {
		out = append(out, err.Error())
	}
	return strings.Join(out, "; ")
}

// words matches the parts of an error's text that may be a name in Kubernetes.
var words = regexp.MustCompile(`[\w.-]+`)

// withoutName removes an object's name from an error's text. A part of another word stays, since a name may be as short as "n".
func withoutName(text, name string) string {
	return words.ReplaceAllStringFunc(text, func(word string) string {
		if strings.TrimRight(word, ".") == name {
			return ""
		}
		return word
	})
}
