package chart

import (
	"fmt"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Reasons of the errors of this package, as Flux's source-controller names them.
// Besides, there are source.ReasonURLInvalid, ReasonAuthenticationFailed and
// ReasonLimitExceeded.
const (
	// ReasonFailed: the index of a repository cannot be fetched.
	ReasonFailed = "Failed"
	// ReasonIndexation: what was fetched is not an index.
	ReasonIndexation = "IndexationFailed"
	// ReasonReference: there is no such chart or version.
	ReasonReference = "InvalidChartReference"
	// ReasonPull: the chart cannot be fetched, or what was fetched is no chart.
	ReasonPull = "ChartPullError"
	// ReasonMetadata: the version cannot be changed.
	ReasonMetadata = "MetadataPatchError"
	// ReasonValues: the values files cannot be merged.
	ReasonValues = "ValuesFilesError"
	// ReasonDependency: a dependency cannot be found or fetched.
	ReasonDependency = "DependencyBuildError"
	// ReasonPackage: the chart cannot be loaded or packaged.
	ReasonPackage = "ChartPackageError"
	// ReasonVerification: the signature is not what it has to be.
	ReasonVerification = "ChartVerificationError"
)

// summaries begin the messages of the errors that a build ends with.
func summary(reason string) string {
	switch reason {
	case ReasonReference:
		return "invalid chart reference: "
	case ReasonPull:
		return "chart pull error: "
	case ReasonMetadata:
		return "chart metadata patch error: "
	case ReasonValues:
		return "values files merge error: "
	case ReasonDependency:
		return "dependency build error: "
	case ReasonPackage:
		return "chart package error: "
	case ReasonVerification:
		return "chart verification error: "
	}
	return ""
}

// Final reports whether a failure with this reason stays until the object or its
// source changes, so that trying again is of no use.
func Final(reason string) bool {
	return reason == ReasonReference || reason == ReasonMetadata || reason == ReasonValues
}

// OfBuild reports whether a failure with this reason came after the chart was
// found and fetched: the condition BuildFailed tells of it, and FetchFailed of all
// others.
func OfBuild(reason string) bool {
	switch reason {
	case ReasonMetadata, ReasonValues, ReasonDependency, ReasonPackage, ReasonVerification:
		return true
	}
	return false
}

func failf(reason, format string, args ...any) error {
	return &source.Error{Reason: reason, Err: fmt.Errorf(summary(reason)+format, args...)}
}

// limitf is a failure because of a limit, whatever was being done.
func limitf(format string, args ...any) error {
	return failf(source.ReasonLimitExceeded, format, args...)
}
