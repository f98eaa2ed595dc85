package kubernetes

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

// problem reports whether a condition states a problem. good has the healthy status of types, and wins over the custom.
func (o Outside) problem(good map[string]string) bool {
	healthy := corev1.ConditionStatus(cmp.Or(good[o.Type], string(healthyStatus(o.Type))))
	if healthy == corev1.ConditionTrue {
		return o.Status != string(corev1.ConditionTrue)
	}
	return o.Status == string(corev1.ConditionTrue)
}

// goodWhenTrue has the types whose names do not follow the custom: those of the etcd members of k3s and RKE2.
var goodWhenTrue = []string{"EtcdIsVoter"}

// goodWords end the names of conditions that are good when True, such as StorageReady.
var goodWords = []string{
	"available", "connected", "healthy", "joined", "normal", "ok", "online", "operational", "reachable", "ready", "registered",
	"schedulable", "succeeded", "synced", "up", "valid",
	"initialized", //nolint:misspell // as Kubernetes spells it
}

// negations before a good word make it a bad one, as in NodeNotReady.
var negations = []string{"no", "non", "not", "never"}

// healthyStatus returns the status that the custom calls healthy. A type whose last word names a good state is good when True, and any
// other, such as KernelDeadlock, is good when False.
func healthyStatus(typ string) corev1.ConditionStatus {
	words := wordsOf(typ[strings.LastIndexByte(typ, '/')+1:])
	last := len(words) - 1
	good := last >= 0 && slices.Contains(goodWords, words[last]) && (last == 0 || !slices.Contains(negations, words[last-1]))
	if good || slices.Contains(goodWhenTrue, typ) {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// wordBreak finds the beginning of a word in a name such as GPUStorageReady.
var wordBreak = regexp.MustCompile(`[a-z0-9][A-Z]|[A-Z][A-Z][a-z]`)

// wordsOf splits a name such as StorageReady or storage-ready into lower-case words.
func wordsOf(name string) []string {
	name = wordBreak.ReplaceAllStringFunc(name, func(s string) string { return s[:1] + " " + s[1:] })
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}
