// Package charttest checks the chart of helm/lofamo: Helm renders it, a real API server takes it, and programs run as its pods
// say. It holds tests alone.
package charttest
