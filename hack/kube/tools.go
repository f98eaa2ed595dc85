//go:build tools

// Package kube pins the Kubernetes API server that tests and benchmarks build and run; it is a module of its own, so that none of it comes
// into the project's.
package kube

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
