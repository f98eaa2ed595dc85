package executor

import (
	"errors"
	"iter"
)

// BuildAll builds one part of an executor for each entry of its configuration. The error names all bad entries at once.
func BuildAll[K comparable, C, X any](configured iter.Seq2[K, C], one func(K, C) (X, error)) (map[K]X, error) {
	out := map[K]X{}
	var errs []error
	for k, c := range configured {
		x, err := one(k, c)
		errs = append(errs, err)
		out[k] = x
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// Named walks a list of things that have names of their own.
func Named[K comparable, C any](list []C, name func(C) K) iter.Seq2[K, C] {
	return func(yield func(K, C) bool) {
		for _, c := range list {
			if !yield(name(c), c) {
				return
			}
		}
	}
}

// Blind refuses an undo or a recheck of an action that leaves no trace and cannot be undone. settles says who knows whether the
// action has happened.
func Blind(j Job, what, settles string) (refused Result, ok bool) {
	switch {
	case j.Undo:
		return Unchanged("%s cannot be put back", what), false
	case j.Recheck:
		return NotKnown("whether %s has happened cannot be looked for: %s", what, settles), false
	}
	return Result{}, true
}
