// Package charttest checks the chart of helm/lofamo: Helm renders it, a real API server accepts it, and programs run as
// its pods specify. The package contains only tests.
package charttest
