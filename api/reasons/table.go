package reasons

func anyKind() Section {
	return Section{
		Title: "Any kind",
		Entries: []Entry{
			{
				Reasons: []string{"Succeeded"},
				Means:   "it is as it should be",
				Next:    "nothing",
			},
			{
				Reasons: []string{"Progressing"},
				Means:   "it was not looked at yet, or is being worked on",
				Next:    "wait; if it takes longer than its `spec.timeout`, see whether an agent runs: `cascade check`",
			},
			{
				Reasons: []string{"Suspended"},
				Means:   "`spec.suspend` is set: what Git says is not applied",
				Next:    "set `spec.suspend: false` where it was set, in Git if Git declares it",
			},
			{
				Reasons: []string{"DependencyCycle"},
				Note:    " (of `cascade why`)",
				Means:   "objects wait for each other in a circle, by `dependsOn` or by their health, and none begins",
				Next:    "take one `dependsOn` of those that the message names out of Git",
			},
			{
				Reasons: []string{"ObjectMissing"},
				Note:    " (of `cascade why`)",
				Means:   "another object refers to this one, and it does not exist",
				Next:    "commit it, or correct the reference",
			},
			{
				Reasons: []string{"AgentSilent"},
				Note:    " (of `cascade why`)",
				Means:   "the agent of this tier does not renew its heartbeat: nothing is reconciled, and what is shown is old",
				Next:    "see why it does not run: `cascade check`",
			},
			{
				Reasons: []string{"ProviderNotAvailable"},
				Note:    " (of `cascade why`, about a Deployment)",
				Means:   "the controller of a provider of Cluster API does not run, because a Secret that it reads has nothing that is valid",
				Next:    "see the Credential that keeps the Secret",
			},
			{
				Reasons: []string{"WorkerStalled"},
				Means:   "a reconcile did not end by its deadline, and keeps a worker: a defect. `/healthz` fails after three looks, half a minute apart, so that the agent is restarted; `cascade_stalled_workers` counts them",
				Next:    "if it comes again, suspend the object, and report the agent's log",
			},
		},
	}
}

func gitRepository() Section {
	return Section{
		Title: "GitRepository",
		Kinds: []string{"GitRepository"},
		Entries: []Entry{
			{
				Reasons: []string{"URLInvalid"},
				Means:   "the URL has no usable scheme or host, or is one of a registry and has a login in it",
				Next:    "correct `spec.url`",
			},
			{
				Reasons: []string{"AuthenticationFailed"},
				Means:   "the Secret is missing or incomplete, or the server refuses it",
				Next:    "check `spec.secretRef`; SSH needs `identity` and `known_hosts`",
			},
			{
				Reasons: []string{"GitOperationFailed"},
				Means:   "the server does not answer, or has no such branch, tag or commit",
				Next:    "check the server and `spec.ref`; the last snapshot stays in use",
			},
			{
				Reasons: []string{"EmptyGitRepository"},
				Means:   "there is no commit yet",
				Next:    "push one",
			},
			{
				Reasons: []string{"RevisionNotFetched"},
				Note:    " (an event)",
				Means:   "clusters may have an older revision of the source, by a Rollout, which cannot be fetched: the commit is gone from the server, or `spec.include` leaves open what it was",
				Next:    "restore the commit, or let the clusters have another revision; they stay as they are until then",
			},
			{
				Reasons: []string{"RevisionNotFetched"},
				Note:    " (condition `FetchFailed` of any source that is suspended, and an event)",
				Means:   "the agent began anew, and what the source had cannot be fetched again: it is gone, or its server or credential fails. Who refers to the source stands still",
				Next:    "see the message; restore it, or resume the source, which uses what it has now",
			},
			{
				Reasons: []string{"LimitExceeded"},
				Means:   "the repository, a file, or the number of files is larger than the limit that the message names",
				Next:    "shrink it, or raise `--max-pack-bytes`",
			},
			{
				Reasons: []string{"InvalidProviderConfiguration"},
				Means:   "the provider and the Secret or service account do not go together",
				Next:    "correct `spec.provider`",
			},
			{
				Reasons: []string{"CredentialRefused"},
				Means:   "the identity of a cloud, or the token of a GitHub App, would go to a host that it is not for; or the agent's identity at a cloud would go where a `ca.crt` of the object, or `insecure`, lets somebody else answer ([decision 020](decisions/020-where-credentials-go.md))",
				Next:    "correct the URL, remove `ca.crt` or `insecure`, or name a Secret or a `serviceAccountName`",
			},
			{
				Reasons: []string{"IncludeUnavailable", "IncludeCycle", "CopyFailure"},
				Means:   "an included repository has no snapshot yet, includes this one, or has no such directory",
				Next:    "look at that repository, or `spec.include`",
			},
			{
				Reasons: []string{"InvalidVerificationMode", "InvalidGitObject", "InvalidTagSignature", "InvalidCommitSignature", "VerificationError"},
				Means:   "what `spec.verify` asks for does not hold; the snapshot is not used",
				Next:    "sign, or correct `spec.verify` and its Secret",
			},
			{
				Reasons: []string{"StatOperationFailed", "ArchiveOperationFailed"},
				Means:   "an artifact could not be packed (`--artifact-addr`)",
				Next:    "look at the disk of `--storage-path`",
			},
			{
				Reasons: []string{"SnapshotNotKept"},
				Note:    " (an event)",
				Means:   "what was fetched is applied, and could not be written below `--snapshot-path`, or not be read from there",
				Next:    "look at that volume; nothing else depends on it",
			},
			{
				Reasons: []string{"SnapshotRecalled"},
				Note:    " (an event)",
				Means:   "after a restart the source could not be fetched; what was fetched before is used",
				Next:    "look at why the source fails",
			},
			{
				Reasons: []string{"NewArtifact"},
				Note:    " (an event)",
				Means:   "another revision was fetched",
				Next:    "nothing",
			},
		},
	}
}

func otherSources() Section {
	return Section{
		Title: "OCIRepository, Bucket, HelmRepository, HelmChart",
		Kinds: []string{"OCIRepository", "Bucket", "HelmRepository", "HelmChart"},
		Intro: "`URLInvalid`, `AuthenticationFailed`, `LimitExceeded`, `InvalidProviderConfiguration`, `CredentialRefused` and `VerificationError` mean the same as\nabove. Besides these:",
		Entries: []Entry{
			{
				Reasons: []string{"OCIArtifactPullFailed", "ReadOperationFailed"},
				Means:   "the registry does not answer, or has no such tag, digest or version",
				Next:    "check `spec.url` and `spec.ref`; the last snapshot stays in use",
			},
			{
				Reasons: []string{"OCIArtifactLayerOperationFailed"},
				Means:   "the image has no layer of that media type, or the layer is no tarball",
				Next:    "check `spec.layerSelector`",
			},
			{
				Reasons: []string{"BucketOperationFailed"},
				Means:   "the server does not answer, has no such bucket, or an object's name is no path",
				Next:    "check `spec.bucketName`, and the object that the message names",
			},
			{
				Reasons: []string{"InvalidSTSConfiguration"},
				Means:   "`spec.sts` and `spec.provider` do not go together",
				Next:    "correct one of them",
			},
			{
				Reasons: []string{"Failed", "IndexationFailed"},
				Means:   "the index of a Helm repository cannot be fetched, or is none",
				Next:    "check `spec.url`; the last index stays in use",
			},
			{
				Reasons: []string{"SourceUnavailable", "NoSourceArtifact"},
				Means:   "the source of a chart is not there, or has not been fetched yet",
				Next:    "look at the source",
			},
			{
				Reasons: []string{"UnsupportedSourceKind"},
				Means:   "a chart cannot be in this kind of source",
				Next:    "correct `spec.sourceRef`",
			},
			{
				Reasons: []string{"InvalidChartReference"},
				Means:   "there is no such chart, or no version in the range",
				Next:    "correct `spec.chart` and `spec.version`",
			},
			{
				Reasons: []string{"ChartPullError"},
				Means:   "the chart cannot be fetched, or is not what the index says; or a registry has no version in the range yet, and is asked again",
				Next:    "look at the repository",
			},
			{
				Reasons: []string{"MetadataPatchError", "ValuesFilesError", "DependencyBuildError", "ChartPackageError"},
				Means:   "the chart cannot be put together",
				Next:    "correct the file that the message names",
			},
			{
				Reasons: []string{"ChartVerificationError"},
				Means:   "the chart is not signed as `spec.verify` asks",
				Next:    "sign it, or correct `spec.verify`",
			},
		},
	}
}

func helmRelease() Section {
	return Section{
		Title: "HelmRelease",
		Kinds: []string{"HelmRelease"},
		Entries: []Entry{
			{
				Reasons: []string{"InvalidChartReference"},
				Means:   "neither or both of `spec.chart` and `spec.chartRef`",
				Next:    "keep one",
			},
			{
				Reasons: []string{"SourceNotReady", "ArtifactFailed"},
				Means:   "the chart is not there, not fetched yet, or cannot be loaded",
				Next:    "look at the HelmChart, OCIRepository or ExternalArtifact",
			},
			{
				Reasons: []string{"ValuesError"},
				Means:   "something in `valuesFrom` is missing, or cannot be merged",
				Next:    "correct what the message names",
			},
			{
				Reasons: []string{"ChartMutateError"},
				Means:   "tag and version of a chart do not agree",
				Next:    "correct the tag, or the chart",
			},
			{
				Reasons: []string{"RESTClientError"},
				Means:   "the cluster of `spec.kubeConfig` cannot be reached",
				Next:    "look at the Secret, and the cluster",
			},
			{
				Reasons: []string{"InstallFailed", "UpgradeFailed", "TestFailed"},
				Means:   "Helm failed; the event has its last lines",
				Next:    "correct values or chart; `spec.install` and `spec.upgrade` say what is tried",
			},
			{
				Reasons: []string{"RollbackFailed", "UninstallFailed"},
				Means:   "a remediation or the end of the release failed",
				Next:    "look at the objects that the message names; to let the HelmRelease go and leave them, suspend it first",
			},
			{
				Reasons: []string{"RetriesExceeded", "MissingRollbackTarget"},
				Note:    " (condition `Stalled`)",
				Means:   "there is no attempt left, or nothing to go back to",
				Next:    "correct it, or `flux reconcile hr --reset`",
			},
			{
				Reasons: []string{"DriftDetected"},
				Note:    " (condition `Drifted`)",
				Means:   "somebody changed objects, and drift detection warns",
				Next:    "change the values, or the objects",
			},
			{
				Reasons: []string{"AwaitingTests", "PendingRelease", "DriftCorrected", "DriftCorrectionFailed"},
				Note:    " (events, or of one reconcile)",
				Means:   "tests of the release are still to run; Helm was interrupted in an action, which is taken up; changed objects were corrected, or could not be",
				Next:    "nothing; for the last, look at the objects that the message names",
			},
			{
				Reasons: []string{"PruneBlocked"},
				Means:   "an upgrade, a remediation or the end of the release would delete something protected; or Clusters of the release would be built a second time, in the cluster of another `spec.kubeConfig`",
				Next:    "restore it; or confirm with `cascade.dev/deletion: confirmed` on it or on the HelmRelease, and remove it after that; for Clusters built twice, take back the change, or `cascade pivot`",
			},
			{
				Reasons: []string{"UnsupportedVersionStep"},
				Means:   "a Rollout moves the Cluster that the release makes, and the chart would have it skip a minor version of Kubernetes, or go back by one, or by a patch where it has a managed topology; the release stays as it was",
				Next:    "commit the version that the message names first",
			},
			{
				Reasons: []string{"ControlPlaneUnreadable"},
				Means:   "a Rollout moves the Cluster that the release makes, and its control plane, or what the chart looks up, cannot be read, as while its provider is down, so that nobody knows which version of Kubernetes it may have; the release stays as it is",
				Next:    "mend the provider of the kind that the message names; it is tried again",
			},
			{
				Reasons: []string{"CreateHeld"},
				Means:   "Clusters that do not exist here are not created, and the release is not made, because they may run already, or were moved away",
				Next:    "restore the saved state, or `cascade approve create`; see [rebuild.md](rebuild.md)",
			},
			{
				Reasons: []string{"SourceFailing"},
				Note:    " (condition of that name)",
				Means:   "the chart has not been fetched since the agent began: the release stays as it is, and nothing of it is looked at",
				Next:    "look at the status of the source",
			},
			{
				Reasons: []string{"HandOverPending"},
				Note:    " (condition of that name)",
				Means:   "the release no longer has objects that another owner declares and has not applied",
				Next:    "as for a Kustomization",
			},
			{
				Reasons: []string{"DependencyNotReady", "InvalidCELExpression", "AccessDenied"},
				Means:   "as for a Kustomization",
			},
		},
	}
}

func kustomization() Section {
	return Section{
		Title: "Kustomization",
		Kinds: []string{"Kustomization"},
		Entries: []Entry{
			{
				Reasons: []string{"ArtifactFailed"},
				Means:   "the source, or the path in it, is not there",
				Next:    "check `spec.sourceRef` and `spec.path`; nothing is deleted meanwhile",
			},
			{
				Reasons: []string{"BuildFailed"},
				Means:   "the rendering failed, could not be decrypted, or was refused as hostile; `CredentialRefused` in the message: a file names a Vault server that nobody allowed",
				Next:    "correct the file that the message names; [decision 020](decisions/020-where-credentials-go.md)",
			},
			{
				Reasons: []string{"BuildFailed"},
				Note:    ": *it needs more than ...*",
				Means:   "the build exceeded a limit of its worker; it is not tried again until its files or spec change, or somebody asks",
				Next:    "make it smaller, or split it; `--worker-memory` and `--worker-time` of the agent",
			},
			{
				Reasons: []string{"BuildFailed"},
				Note:    ": *no worker is available*, *the worker was lost*",
				Means:   "the agent cannot start a worker, or the kernel killed it; it is tried again",
				Next:    "look at the memory of the agent's pod, and whether the kernel has seccomp filters",
			},
			{
				Reasons: []string{"DependencyNotReady"},
				Means:   "a Kustomization in `dependsOn` is not ready",
				Next:    "look at that one; this one is woken",
			},
			{
				Reasons: []string{"ReconciliationFailed"},
				Means:   "the API server refused an object, or the cluster of `spec.kubeConfig` does not answer or is refused: then the message begins with the reason of a Child, such as `AddressRefused`",
				Next:    "correct the object that the message names; the others of its stage are applied. If it is `Forbidden`, the account lost a right, or never had it: grant it, and the Kustomization is woken",
			},
			{
				Reasons: []string{"InvalidCELExpression"},
				Means:   "an expression in `healthCheckExprs` or `readyExpr` does not compile",
				Next:    "correct it",
			},
			{
				Reasons: []string{"FeatureGateDisabled"},
				Means:   "the kind of source needs a feature gate",
				Next:    "`--feature-gates`",
			},
			{
				Reasons: []string{"HealthCheckFailed"},
				Means:   "with `wait`, an object did not become healthy in time",
				Next:    "look at that object",
			},
			{
				Reasons: []string{"HealthCheckCanceled"},
				Means:   "an event: something else was asked for while objects were waited for; the message names who asked",
				Next:    "nothing; it goes on with that",
			},
			{
				Reasons: []string{"PruneFailed"},
				Means:   "something could not be deleted, or its state could not be read; the API server may have refused it ([safety](safety.md))",
				Next:    "it stays in the inventory and is tried again",
			},
			{
				Reasons: []string{"PruneBlocked"},
				Means:   "deletes are held: too many, or something protected is among them ([safety](safety.md)); or Clusters would be built a second time in another cluster, to which `spec.kubeConfig` leads by now",
				Next:    "restore in Git; or `cascade approve prune`; or, for protected objects, confirm in one commit and remove in the next",
			},
			{
				Reasons: []string{"PruneApproved"},
				Note:    " (an event)",
				Means:   "the deletes that were held were approved, and by whom",
			},
			{
				Reasons: []string{"CreateApproved"},
				Note:    " (an event)",
				Means:   "the creation of a Cluster that was held was approved, and by whom",
			},
			{
				Reasons: []string{"CreateHeld"},
				Means:   "Clusters that do not exist here are not created, because they may run already, or were moved away",
				Next:    "restore the saved state, or `cascade approve create`; see [rebuild.md](rebuild.md)",
			},
			{
				Reasons: []string{"HandOverPending"},
				Note:    " (condition of that name)",
				Means:   "it no longer declares objects that the message names, and the owner that declares them now has not applied them",
				Next:    "let that one apply them: resume it, or mend what it waits for; or remove them there too. After 10 minutes what is not protected is deleted; see [safety](safety.md)",
			},
			{
				Reasons: []string{"RolloutPending"},
				Note:    " (condition `RolloutPending`)",
				Means:   "a Rollout moves the Clusters that it declares, and has not let those have a revision yet that the message names; they keep what is in place, and the rest is applied ([decision 050](decisions/050-clusters-at-revisions.md))",
				Next:    "look at the Rollout",
			},
			{
				Reasons: []string{"SourceNotReady"},
				Note:    " (condition `RolloutPending`)",
				Means:   "Clusters may have a revision of the source that is being fetched; they keep what is in place",
				Next:    "wait",
			},
			{
				Reasons: []string{"RollingOut"},
				Note:    " (condition `RolloutPending`)",
				Means:   "workers without a managed topology wait for their control plane to run their version of Kubernetes",
				Next:    "wait, or look at the control plane that the message names",
			},
			{
				Reasons: []string{"RevisionMissing"},
				Note:    " (also the condition `RolloutPending`)",
				Means:   "Clusters may have a revision that cannot be fetched; they keep what is in place, and never get another one instead",
				Next:    "bring the commit back, or let the Rollout give another one",
			},
			{
				Reasons: []string{"UnsupportedVersionStep"},
				Note:    " (also the condition `RolloutPending`)",
				Means:   "the revision that a Cluster may have would skip a minor version of Kubernetes, or go back by one, or by a patch where it has a managed topology; the Cluster keeps what is in place",
				Next:    "commit the version that the message names first",
			},
			{
				Reasons: []string{"ControlPlaneUnreadable"},
				Note:    " (also the condition `RolloutPending`)",
				Means:   "the control planes of Clusters cannot be read, as while their provider is down, so that nobody knows which version of Kubernetes these may have; they keep what is in place, and the rest is applied",
				Next:    "mend the provider of the kind that the message names; the agent looks again every 15 seconds",
			},
			{
				Reasons: []string{"RolloutConflict"},
				Note:    " (also the condition `RolloutPending`)",
				Means:   "two Rollouts move the same Cluster, which keeps what is in place",
				Next:    "delete one, or give them other `spec.clusterSelector`s",
			},
			{
				Reasons: []string{"BuildFailed"},
				Note:    " (condition `RolloutPending`)",
				Means:   "the revision that Clusters may have cannot be built any more, for a variable that is gone perhaps; they keep what is in place",
				Next:    "restore what the message names",
			},
			{
				Reasons: []string{"InvalidSpec"},
				Means:   "a Rollout moves a Kustomization that `spec.kubeConfig` applies to another cluster",
				Next:    "declare the Rollout in that cluster",
			},
			{
				Reasons: []string{"SourceFailing"},
				Note:    " (condition of that name)",
				Means:   "the source has not been fetched for half a minute or longer; what it had before is applied, and stays",
				Next:    "look at the status of the source",
			},
			{
				Reasons: []string{"AccountMissing"},
				Note:    " (condition of that name)",
				Means:   "the service account does not exist. What RBAC grants to its name is still used; when the Kustomization is deleted, its objects are left behind",
				Next:    "create the ServiceAccount, or change `spec.serviceAccountName`",
			},
			{
				Reasons: []string{"AccessDenied"},
				Means:   "the source is in another namespace, which a flag forbids",
				Next:    "move one of them",
			},
			{
				Reasons: []string{"DriftDetected"},
				Note:    " (condition `Drifted`)",
				Means:   "somebody changed objects, and `--drift=report` leaves them",
				Next:    "change Git, or the objects, or the annotation `cascade.dev/drift`",
			},
			{
				Reasons: []string{"OwnershipConflict"},
				Note:    " (condition of that name)",
				Means:   "another Kustomization declares the same objects, and both apply them in turn, each at its interval; Ready is not about that",
				Next:    "take each object that the message names out of one of both in Git. It says so until one of them lets go, or for some hours after the last time, in the agent's own cluster",
			},
		},
	}
}

func imageUpdates() Section {
	return Section{
		Title: "ImageRepository, ImagePolicy, ImageUpdateAutomation",
		Kinds: []string{"ImageRepository", "ImagePolicy", "ImageUpdateAutomation"},
		Intro: "`AuthenticationFailed` and `GitOperationFailed` mean the same as of a GitRepository. Besides these:",
		Entries: []Entry{
			{
				Reasons: []string{"ImageURLInvalid"},
				Means:   "`spec.image` is no name of a repository, or has a scheme, a tag or a digest",
				Next:    "correct `spec.image`",
			},
			{
				Reasons: []string{"AuthenticationFailed"},
				Means:   "the Secret or service account is missing or incomplete, or the identity of a cloud would go to a registry that is not of it",
				Next:    "check `spec.secretRef`, `spec.serviceAccountName` and `spec.provider`",
			},
			{
				Reasons: []string{"ReadOperationFailed"},
				Means:   "the registry does not answer in time, refuses the credential, or has no such image or tag",
				Next:    "check `spec.image` and `spec.secretRef`; the last list of tags stays in use",
			},
			{
				Reasons: []string{"LimitExceeded"},
				Means:   "the list of tags, a file, or the number of marked files is larger than the limit that the message names",
				Next:    "remove old tags from the registry, or set `spec.update.path`",
			},
			{
				Reasons: []string{"Failure"},
				Means:   "no tag fits the policy, a tag is no number where numbers are compared, or an expression of `spec.exclusionList` cannot be used",
				Next:    "correct what the message names",
			},
			{
				Reasons: []string{"InvalidPolicy"},
				Means:   "`spec.policy` or `spec.filterTags` cannot be used",
				Next:    "correct what the message names",
			},
			{
				Reasons: []string{"DependencyNotReady"},
				Means:   "the ImageRepository is missing, or its tags were not listed by this agent yet",
				Next:    "look at that ImageRepository; the policy is woken by its scan",
			},
			{
				Reasons: []string{"AccessDenied"},
				Means:   "the ImageRepository or GitRepository is in another namespace, and its `spec.accessFrom` or a flag forbids to use it",
				Next:    "grant the access, or move one of them",
			},
			{
				Reasons: []string{"InvalidSourceConfiguration"},
				Means:   "the commit cannot be made as it is asked for: no branch to push to, a refspec that would force or delete, or a directory that is not there",
				Next:    "correct `spec.git`, or `spec.update.path`",
			},
			{
				Reasons: []string{"InvalidUpdateStrategy", "InvalidPolicySelector"},
				Means:   "`spec.update.strategy` or `spec.policySelector` cannot be used",
				Next:    "correct it",
			},
			{
				Reasons: []string{"SourceManagerFailed"},
				Means:   "the GitRepository, or the Secret of the signing key, is missing or cannot be used",
				Next:    "create it, or correct the reference",
			},
			{
				Reasons: []string{"UpdateFailed"},
				Means:   "a marked file is no YAML, a marker stands where no value can be set in place, or the template of the message fails",
				Next:    "correct the file or the template that the message names",
			},
			{
				Reasons: []string{"RemovedTemplateField"},
				Means:   "the template of the message uses `.Updated`, which Flux removed",
				Next:    "use `.Changed`",
			},
			{
				Reasons: []string{"RefspecPushFailed"},
				Means:   "the branch has the commit, and the second reference of `spec.git.push.refspec` does not take it; it is tried again",
				Next:    "look at what that reference has; nothing is forced",
			},
		},
	}
}

func child() Section {
	return Section{
		Title: "Child (conditions Connected, Seeded, Ready)",
		Kinds: []string{"Child"},
		Entries: []Entry{
			{
				Reasons: []string{"NoLayer"},
				Means:   "no Layer of the namespace selects the cluster",
				Next:    "label the `Cluster`, or leave it",
			},
			{
				Reasons: []string{"ClusterNotReady"},
				Means:   "infrastructure or control plane is not there yet, `readyWhen` is false, or the `Cluster` of a declared Child is gone",
				Next:    "wait, or look at the `Cluster`; delete a Child that nobody declares any more",
			},
			{
				Reasons: []string{"Paused"},
				Means:   "the `Cluster` is paused",
				Next:    "nothing is pushed, and nothing removed, until it is not; a layer that was not healthy before still says that, and is not looked at either",
			},
			{
				Reasons: []string{"ClusterDeleting"},
				Means:   "the `Cluster` is being deleted",
				Next:    "nothing; the records go with it",
			},
			{
				Reasons: []string{"KubeconfigMissing"},
				Means:   "the Secret is not there, not tied to the `Cluster`, or has no such key; or this tier's own API server has not handed it out for half a minute, as the message says",
				Next:    "look at the provider",
			},
			{
				Reasons: []string{"KubeconfigRefused"},
				Means:   "the kubeconfig has fields that are not allowed, such as exec or files",
				Next:    "provide one with inline certificates or an inline token",
			},
			{
				Reasons: []string{"Unreachable"},
				Means:   "the API server does not answer",
				Next:    "it is tried again within 30 s; what is known stays",
			},
			{
				Reasons: []string{"PushTimedOut"},
				Means:   "the API server answers, and what is pushed takes too long: it waits for an admission webhook that does not answer, or the child used up the time that it has in a minute ([decision 030](decisions/030-time-and-lists-of-a-child.md))",
				Next:    "repair or remove the webhook that the message names, in the child; it is tried again within 5 minutes, and at once when the layer changes",
			},
			{
				Reasons: []string{"AnswerTooLarge"},
				Means:   "the API server answers with more bytes than what was asked for can have",
				Next:    "look at what answers at the address in the kubeconfig; a list that is really that long has to be made shorter",
			},
			{
				Reasons: []string{"RedirectRefused"},
				Means:   "the API server sends requests to another address, and a credential goes to the one it was given for only",
				Next:    "name the address of the API server itself in the kubeconfig",
			},
			{
				Reasons: []string{"NotKubernetes"},
				Means:   "what answers is no API server",
				Next:    "correct the address in the kubeconfig",
			},
			{
				Reasons: []string{"AddressRefused"},
				Means:   "the kubeconfig leads to a link-local address, a metadata service, or a network of `--deny-kubeconfig-addresses`",
				Next:    "correct the kubeconfig",
			},
			{
				Reasons: []string{"IdentityChanged"},
				Means:   "another cluster answers under the recorded name",
				Next:    "correct the kubeconfig; if it is intended, delete the Child",
			},
			{
				Reasons: []string{"IdentityConflict"},
				Means:   "at the first contact the kubeconfig leads to the cluster of another Child, or to one that another tier seeded under another name; nothing is written",
				Next:    "correct the kubeconfig of one of them; the message says what else",
			},
			{
				Reasons: []string{"ChildRefused"},
				Means:   "an event of the Cluster: the API server of this tier refuses its Child, for a quota or by admission, or somebody added another cluster by its name, whose Child has the condition `NameTaken` then; the cluster is not seeded",
				Next:    "raise the quota, or correct the policy; or add the other cluster by another name, and delete the Child",
			},
			{
				Reasons: []string{"ProfileNotOurs"},
				Means:   "an event: a `ClusterProfile` of the name of the child exists that was not made for it, and is left as it is",
				Next:    "rename or delete it, and the child gets one",
			},
			{
				Reasons: []string{"Superseded"},
				Means:   "another management cluster, made of a copy of this one or of the same repositories, took the child over; this tier writes nothing to it ([decision 026](decisions/026-record-in-the-child.md))",
				Next:    "if that one is gone, `cascade approve take-over`",
			},
			{
				Reasons: []string{"RecordInvalid"},
				Means:   "the record of a layer in the child cannot be read, or a newer version of cascade wrote it",
				Next:    "update the agent if a newer version wrote it; else repair or delete the ConfigMap that the message names: what the layer applied is found by its labels then",
			},
			{
				Reasons: []string{"SourceNotReady"},
				Means:   "the layer's source, or that of its providers, has not been fetched, or not at the revision that a Rollout lets the child have; the message says why",
				Next:    "look at the source",
			},
			{
				Reasons: []string{"RolloutPending"},
				Means:   "a Rollout moves the layer, or a source in it, and has not let this child have a revision yet; nothing new is pushed, and what is in place stands ([decision 048](decisions/048-pin-in-the-child.md))",
				Next:    "look at the Rollout: the child may be in no wave, or its wave waits",
			},
			{
				Reasons: []string{"RolloutConflict"},
				Means:   "two Rollouts move the same layer or source of this child; nothing new of it is pushed",
				Next:    "change `spec.moves` or `spec.clusterSelector` of one, or delete it",
			},
			{
				Reasons: []string{"Unauthorized"},
				Means:   "the API server refuses the kubeconfig's credentials, also after the Secret was read again",
				Next:    "renew the kubeconfig in the Secret",
			},
			{
				Reasons: []string{"CredentialsExpiring", "CredentialsLapsed"},
				Note:    " (condition `CredentialsExpiring`)",
				Means:   "a Secret that was delivered to the child has used two thirds of its life, or has expired",
				Next:    "renew the Secret in this tier; the child gets it within seconds. A tier that says so of itself has Credentials that lapsed: `cascade get credentials` there",
			},
			{
				Reasons: []string{"CredentialsFailing"},
				Note:    " (of `cascade why`)",
				Means:   "the agent of the tier counts Credentials that it cannot issue or renew; what they keep is valid still, or was never there",
				Next:    "see which in that tier: `cascade get credentials`",
			},
			{
				Reasons: []string{"BackupsFailing", "BackupsStale"},
				Note:    " (of `cascade why`)",
				Means:   "the agent of the tier counts StateBackups that failed, or whose last success is too old",
				Next:    "see which in that tier: `cascade get statebackups`; save by hand meanwhile: `cascade save`",
			},
			{
				Reasons: []string{"CredentialMissing"},
				Means:   "a Secret that the layer delivers does not exist",
				Next:    "create it",
			},
			{
				Reasons: []string{"ReferenceInvalid"},
				Means:   "the name of a Secret or ConfigMap that the layer refers to has a variable that this child's Cluster does not set, or becomes none that an object can have",
				Next:    "set the label or annotation on the Cluster, or correct the name in the Layer",
			},
			{
				Reasons: []string{"AccessDenied"},
				Means:   "the account that the layer is pushed as may not read a Secret or ConfigMap here, or not use a source of another namespace; what was pushed stays",
				Next:    "let it `get` that object here, or take it out of the layer ([decision 033](decisions/033-teams-layers.md))",
			},
			{
				Reasons: []string{"Forbidden"},
				Means:   "the child does not let that account apply, read or delete something; the rest was applied, and nothing was deleted with other rights",
				Next:    "give the account the right in that cluster, by a layer without an account, or take the object out of the layer",
			},
			{
				Reasons: []string{"BuildFailed", "SeedFailed"},
				Means:   "the layer could not be rendered, or not be applied in the child",
				Next:    "correct what the message names",
			},
			{
				Reasons: []string{"DependencyNotReady"},
				Means:   "another layer comes first on this child",
				Next:    "look at that one; if the message says that it does not exist, or does not select this child, correct `dependsOn` or its selector",
			},
			{
				Reasons: []string{"AgentNotReady"},
				Means:   "the agent's Deployment is not available, or it does not renew its heartbeat (Lease `cascade-heartbeat`); what keeps its pods from running is in the message, after a quarter of a minute and as far as the kubeconfig may read pods",
				Next:    "mend what the message names; where it names nothing, look at the pods in `cascade-system` of the child",
			},
			{
				Reasons: []string{"ProviderNotReady"},
				Means:   "a provider of Cluster API that the layer names is applied and does not work yet, or its webhooks do not answer",
				Next:    "look at what the message names, in the child; [providers.md](providers.md)",
			},
			{
				Reasons: []string{"StorageVersionDropped"},
				Means:   "a provider's definition lacks the version in which the child stores objects of the kind",
				Next:    "upgrade the provider to a version that has both, and then to this one",
			},
			{
				Reasons: []string{"ContractMismatch"},
				Means:   "the layer names a provider in a version with which core in its version does not work",
				Next:    "name versions that go together",
			},
			{
				Reasons: []string{"ReportMissing"},
				Means:   "the agent has not reported yet, or its report is gone; the agent writes one that somebody deleted again",
				Next:    "wait; then as above",
			},
			{
				Reasons: []string{"Stale"},
				Note:    " (in a report and in `cascade tree`)",
				Means:   "a tier above the cluster, or its agent, has not been heard of for three observe intervals; what is shown of the cluster is as of then. A Layer names so a Child whose shard no replica has, after half a minute",
				Next:    "look at the first tier on the way down that is not `Stale`: its reason says why",
			},
			{
				Reasons: []string{"Suspended"},
				Means:   "every Kustomization and HelmRelease of the child is suspended, or a Layer that selects it is",
				Next:    "resume them",
			},
			{
				Reasons: []string{"ReportInvalid"},
				Means:   "the agent of the child reports a reason that is none",
				Next:    "look at the report in the child; it may be of another program, or forged",
			},
			{
				Reasons: []string{"SourceFailing", "KustomizationFailing", "HelmReleaseFailing"},
				Means:   "the child's own sync fails; the message is its own",
				Next:    "look there",
			},
			{
				Reasons: []string{"PruneBlocked", "PruneFailed", "HealthCheckFailed"},
				Means:   "as for a Kustomization; approve with `--kind Child`",
			},
			{
				Reasons: []string{"RemovalHeld"},
				Means:   "a layer with `deletionPolicy: Delete` no longer selects the cluster, and too many others with it; nothing is removed",
				Next:    "as for the Layer",
			},
			{
				Reasons: []string{"ObjectsLeft"},
				Note:    " (an event)",
				Means:   "a Layer with `deletionPolicy: Delete` is gone without having been taken off the cluster: somebody removed its finalizer, or an earlier version of the agent was in charge. Or the cluster has the record of a layer that this tier does not have, or a layer is removed whose record, and all that tells what it applied, is not there any more",
				Next:    "remove the objects by hand if they are not wanted",
			},
			{
				Reasons: []string{"CreateHeld"},
				Means:   "the layer declares Clusters that do not exist in the child and may run already; the rest of it is applied",
				Next:    "restore the saved state there, or `cascade approve create --pushed` with the child's kubeconfig; see [rebuild.md](rebuild.md)",
			},
			{
				Reasons: []string{"FirstSyncSettled", "FirstSyncHeld"},
				Note:    " (events)",
				Means:   "the layer says `firstSync: Create`, and the child's agent creates Clusters without approval because the child is new; or does not, and why",
				Next:    "for `FirstSyncHeld`: restore the saved state in the child, or approve there what is new; see [rebuild.md](rebuild.md)",
			},
			{
				Reasons: []string{"InvalidSpec"},
				Means:   "a field of the Layer, or a combination of fields, is invalid",
				Next:    "correct the Layer",
			},
		},
	}
}

func cluster() Section {
	return Section{
		Title: "Cluster and its parts",
		Kinds: []string{"Cluster"},
		Intro: "`cascade why` gives a Cluster of Cluster API, and the objects of its infrastructure and control plane, one of these reasons, whatever the\nversion of their conditions is. The message is their own.",
		Entries: []Entry{
			{
				Reasons: []string{"Provisioning", "Starting"},
				Means:   "the infrastructure is not there yet; or it is, and the control plane is not initialized",
				Next:    "wait; if it takes longer than it should, look at the object that the message names, and at the provider's controller",
			},
			{
				Reasons: []string{"Failed"},
				Means:   "the provider gave up, or cannot go on",
				Next:    "correct what the message names, in Git; some failures need the object to be made again",
			},
			{
				Reasons: []string{"Stopped"},
				Means:   "the cluster was switched off at its provider",
				Next:    "start it there",
			},
			{
				Reasons: []string{"Unavailable", "NotAvailable"},
				Means:   "the control plane was there, and does not answer now, by what the provider says",
				Next:    "look at the machines of the control plane, and at the cloud",
			},
			{
				Reasons: []string{"NotFound", "NotServed", "NotReferenced"},
				Means:   "the object that the Cluster refers to does not exist, its kind is not installed here, or the Cluster refers to none",
				Next:    "commit the object, or correct the reference; install the provider of its kind ([providers.md](providers.md))",
			},
			{
				Reasons: []string{"Unreadable"},
				Means:   "the object is not as its kind was when cascade was built, or could not be read in time",
				Next:    "look at it with kubectl; update cascade if the provider is newer",
			},
			{
				Reasons: []string{"Moved"},
				Means:   "the Cluster was moved to another management cluster",
				Next:    "look at it there",
			},
			{
				Reasons: []string{"Deleting"},
				Means:   "the Cluster is being deleted",
				Next:    "wait; if it does not end, look at the finalizers and at the provider's controller",
			},
		},
	}
}

func pivots() Section {
	return Section{
		Title: "Pivots (of `cascade pivot`, and condition Management of a Child)",
		Intro: "Those that `cascade pivot --tolerate` may name are marked with *tolerable*. See [pivot.md](pivot.md).",
		Entries: []Entry{
			{
				Reasons: []string{"ManagedHere"},
				Note:    " (condition `Management`)",
				Means:   "this tier has the objects of the Cluster, as declared",
				Next:    "nothing",
			},
			{
				Reasons: []string{"ManagedElsewhere"},
				Note:    " (condition `Management`; of a Kustomization, the condition of that name; of a Child that a Layer no longer selects, `Seeded`)",
				Means:   "another tier has the objects of the Cluster. A Kustomization that declares it leaves it alone, and may be ready. What a Layer applied stays, and a removal waits",
				Next:    "nothing; declare the Cluster where it is managed, and remove it here",
			},
			{
				Reasons: []string{"KubeconfigNotRenewed"},
				Note:    " (condition `ManagedElsewhere` of a Child)",
				Means:   "the Cluster is elsewhere, and its kubeconfig here cannot follow the one that the cluster renews: the message says why. The connection goes on until the one here is needed",
				Next:    "what the message says; put a kubeconfig that is valid into the Secret, as [pivot.md](pivot.md#what-the-parent-keeps) shows",
			},
			{
				Reasons: []string{"PivotWaiting"},
				Note:    " (condition `Management`)",
				Means:   "`spec.management` is declared, and the child is not connected or not seeded",
				Next:    "look at the conditions `Connected` and `Seeded`",
			},
			{
				Reasons: []string{"PivotRunning"},
				Note:    " (condition `Management`)",
				Means:   "the Cluster is on its way, and the message has the step; or it waits for its turn, as one at a time is brought back",
				Next:    "wait",
			},
			{
				Reasons: []string{"PivotBlocked"},
				Note:    " (condition `Management`)",
				Means:   "one of the reasons below keeps the pivot from beginning or from going on; the Cluster is where the step says",
				Next:    "what is said of that reason; it is tried again every half minute",
			},
			{
				Reasons: []string{"PivotFailed"},
				Note:    " (condition `Management`)",
				Means:   "a call failed, to this tier or to the child; it is tried again",
				Next:    "what the message says; with a lockdown, use `cascade pivot`: the agent may not move Clusters",
			},
			{
				Reasons: []string{"ClusterMissing"},
				Means:   "a Cluster that was named is not in the source",
				Next:    "correct the name, or the kubeconfig",
			},
			{
				Reasons: []string{"ClusterDeleting"},
				Means:   "the Cluster, or a part of it, is being deleted, which no controller ends while the Cluster is paused: before step `switch` the pivot is turned back for it",
				Next:    "wait until it is gone, or has been replaced: the agent tries again, and so may you. Of a copy in the target: `--abort`",
			},
			{
				Reasons: []string{"HalfProvisioned"},
				Note:    ", tolerable",
				Means:   "the Cluster or a Machine is still being built: what its provider made and has not written down yet would be built again",
				Next:    "wait until it is built",
			},
			{
				Reasons: []string{"ClusterPaused"},
				Note:    ", tolerable",
				Means:   "somebody paused the Cluster before; it would stay paused in the target",
				Next:    "let it go on first, unless it is to stay paused",
			},
			{
				Reasons: []string{"SameCluster"},
				Means:   "source and target are the same cluster",
				Next:    "correct `--to` or the kubeconfig",
			},
			{
				Reasons: []string{"PivotConflict"},
				Means:   "another pivot has one of the Clusters",
				Next:    "let it end, or turn it back: the same command with its Clusters and its target",
			},
			{
				Reasons: []string{"PivotHeld"},
				Means:   "another process drives the pivot, and renewed its hold a moment ago",
				Next:    "wait a minute, if it is gone",
			},
			{
				Reasons: []string{"JournalForeign"},
				Means:   "the journal in the source is no journal of this pivot: it names other Clusters or other tiers, so somebody wrote it by hand",
				Next:    "find out who may write ConfigMaps in `cascade-system` there; delete it if no pivot of the Cluster is under way",
			},
			{
				Reasons: []string{"KindMissing"},
				Means:   "the target does not serve a kind in the version in which the source stores it, and would lose fields",
				Next:    "install the provider there, in the same version or a later one",
			},
			{
				Reasons: []string{"KindForeign"},
				Means:   "the target does not have a kind from Cluster API or a provider, as the labels of its definition say, and the source has: it is not the source that decides what is created in the target",
				Next:    "install the provider there as it is in the source; if nobody knows the kind, find out who put its objects into the source",
			},
			{
				Reasons: []string{"ProviderNotRunning"},
				Note:    ", tolerable",
				Means:   "the target has no Deployment of a provider that is available",
				Next:    "install it there, or see why it does not run; tolerate it if it runs otherwise",
			},
			{
				Reasons: []string{"ObjectExists"},
				Means:   "the target has another object of the name of one that is moved",
				Next:    "look at both; delete the one in the target, if it is nobody's",
			},
			{
				Reasons: []string{"SecretElsewhere"},
				Means:   "the Cluster refers to a Secret, ConfigMap or part of a cluster that is not of its namespace, which a pivot that is declared does not copy",
				Next:    "have the child get it from its layers (`spec.credentials`, `spec.providers`), or use `cascade pivot`",
			},
			{
				Reasons: []string{"CircularOwners"},
				Means:   "parts of the Cluster own each other, so that none of them can be made first in the target",
				Next:    "take one of the owners away that the message names",
			},
			{
				Reasons: []string{"SharedDiffers"},
				Note:    ", tolerable",
				Means:   "the target has a class or template of the same name with another spec, which would change the machines",
				Next:    "make them equal; tolerate it to use that of the target",
			},
			{
				Reasons: []string{"OwnerNotHeld"},
				Note:    ", tolerable",
				Means:   "Git declares the Cluster in the source, and no agent of Cascade keeps it from being created again",
				Next:    "suspend what applies it, then tolerate this",
			},
			{
				Reasons: []string{"MoveBlocked"},
				Means:   "a controller asks to wait, with `clusterctl.cluster.x-k8s.io/block-move`, for more than two minutes",
				Next:    "see what that controller waits for",
			},
			{
				Reasons: []string{"NotPaused"},
				Note:    ", tolerable",
				Means:   "a controller does not say that it has stopped, for more than two minutes",
				Next:    "see whether it runs; tolerate it if it does not",
			},
			{
				Reasons: []string{"CopyDiffers"},
				Means:   "the target changes the field that the message names whenever it is written",
				Next:    "look for a webhook, or an older definition, in the target; `--abort` turns back",
			},
			{
				Reasons: []string{"CopyMissing"},
				Means:   "the target does not have a Cluster any more that was moved there; what the source has stays paused",
				Next:    "if it was moved on from there, delete the journal in the source; else restore it in the target",
			},
		},
	}
}

func layer() Section {
	return Section{
		Title: "Layer",
		Kinds: []string{"Layer"},
		Entries: []Entry{
			{
				Reasons: []string{"ChildrenNotReady"},
				Means:   "it is not in place on some children; `status.failing` names up to ten. Or it cannot be removed from children that it no longer selects",
				Next:    "`cascade get children`",
			},
			{
				Reasons: []string{"RemovalHeld"},
				Note:    " (also the condition of that name, and an event)",
				Means:   "the layer would be removed from too many children at once: the selector, the labels of Clusters or the Layer itself changed ([safety](safety.md))",
				Next:    "correct the selector or the labels; or `cascade approve removal`; or `spec.suspend: true`",
			},
			{
				Reasons: []string{"RolloutPending"},
				Means:   "children have another revision than the one that their Rollout brings, and wait for it; `status.revision` is the Rollout's",
				Next:    "look at the Rollout",
			},
			{
				Reasons: []string{"StaticCredential"},
				Note:    " (condition of that name, also of the Child)",
				Means:   "it hands over a Secret that does not say when it lapses, and does not say that this is meant",
				Next:    "let the child get one that lapses ([credentials.md](credentials.md)); or annotate the Secret with `cascade.dev/expires-at`; or say `static: true`",
			},
			{
				Reasons: []string{"InvalidSpec"},
				Means:   "`spec.clusterSelector` cannot be used: nobody knows which clusters it selects. Those that have the layer keep what it applied, and get nothing new; nothing is removed, and a Rollout of the layer stands",
				Next:    "correct the selector; operators are `In`, `NotIn`, `Exists` and `DoesNotExist`",
			},
			{
				Reasons: []string{"NoChildren"},
				Means:   "it selects no cluster",
				Next:    "check `spec.clusterSelector`; an empty one selects nothing",
			},
			{
				Reasons: []string{"Suspended"},
				Means:   "`spec.suspend` is set",
			},
		},
	}
}

func credential() Section {
	return Section{
		Title: "Credential",
		Kinds: []string{"Credential"},
		Intro: "Condition `Ready` says whether the Secret has a credential that is valid, `SourceFailing` that its source does not answer or refuses; with the one true and the other, too, nothing is broken yet. [credentials.md](credentials.md) has the whole.",
		Entries: []Entry{
			{
				Reasons: []string{"Succeeded"},
				Means:   "the Secret has a credential that is valid",
				Next:    "nothing",
			},
			{
				Reasons: []string{"VaultUnreachable"},
				Note:    " (also of condition `SourceFailing`)",
				Means:   "the Vault server does not answer, is sealed, or fails; it is asked again, at least once a minute",
				Next:    "look at the server, and the way to it from the agent; what the Secret has is valid until `status.expiresAt`",
			},
			{
				Reasons: []string{"VaultRefused"},
				Note:    " (also of condition `SourceFailing`)",
				Means:   "the Vault server refuses the login or the request",
				Next:    "look at the role of the auth method, its policies, and `spec.vault.request.path`",
			},
			{
				Reasons: []string{"AnswerInvalid"},
				Note:    " (also of condition `SourceFailing`)",
				Means:   "the answer is none of Vault's, has a lease without an end, has lapsed, or lacks a field that `spec.target.data` names",
				Next:    "correct `spec.target.data`, or what the message names on the server",
			},
			{
				Reasons: []string{"CredentialMissing"},
				Means:   "the service account or Secret of the login does not exist, or lacks a key",
				Next:    "create it",
			},
			{
				Reasons: []string{"CredentialRefused"},
				Means:   "the owner of the login does not name the server that it would go to, or the account does not allow its token ([decision 079](decisions/079-where-logins-go.md))",
				Next:    "annotate the service account or add the key that the message names; or `--vault-address` of the agent",
			},
			{
				Reasons: []string{"CredentialLapsing"},
				Means:   "the last sixth of its life has begun, and it could not be renewed or replaced",
				Next:    "see the message and condition `SourceFailing`; at `status.expiresAt` it stops working",
			},
			{
				Reasons: []string{"CredentialLapsed"},
				Means:   "what the Secret has is not valid any more",
				Next:    "see the message; a new one is issued as soon as the source gives one",
			},
			{
				Reasons: []string{"NameTaken"},
				Means:   "there is a Secret of the name that is not of this Credential; it is not touched",
				Next:    "remove it, or choose another `spec.target.name`",
			},
			{
				Reasons: []string{"RecordInvalid"},
				Means:   "the Secret in which the agent remembers leases cannot be read: what is leased would never be revoked",
				Next:    "restore it; or delete it, and revoke on the server what was leased",
			},
			{
				Reasons: []string{"TooManyLeases"},
				Means:   "sixteen leases of the Credential could not be revoked, so that nothing more is leased",
				Next:    "let the logins of the role revoke themselves (policy `default`), or wait until they end",
			},
			{
				Reasons: []string{"RevocationPending"},
				Means:   "the Credential is being deleted, and waits until what it was leased is revoked or has lapsed",
				Next:    "bring the server back; or `spec.revokeOnDelete: false`",
			},
			{
				Reasons: []string{"KindRemoved"},
				Note:    " (an event)",
				Means:   "the definition of Credential is being deleted, and the Credential with it; the Secret stays, and what is leased lapses",
				Next:    "install the definition again: the Credential then has a new one issued into that Secret",
			},
			{
				Reasons: []string{"RestartFailed"},
				Means:   "a Deployment of `spec.restart` could not be restarted with the new credential",
				Next:    "see the message; what it has stays valid until its own end",
			},
			{
				Reasons: []string{"FileUnreadable"},
				Means:   "the file below `--credential-files` cannot be read, or what it has has lapsed",
				Next:    "look at what keeps the file fresh",
			},
			{
				Reasons: []string{"InvalidSpec"},
				Means:   "the spec names no source, or an address that is none, or what `target` describes is no Secret of its type",
				Next:    "correct it",
			},
			{
				Reasons: []string{"Suspended"},
				Means:   "`spec.suspend` is set: it is not renewed",
			},
		},
	}
}

func rollout() Section {
	return Section{
		Title: "Rollout (condition Ready)",
		Kinds: []string{"Rollout"},
		Entries: []Entry{
			{
				Reasons: []string{"Progressing", "Soaking", "OutsideWindow"},
				Means:   "a revision is on its way; the message has the wave",
				Next:    "wait",
			},
			{
				Reasons: []string{"AwaitingRoom"},
				Means:   "as many clusters of the tier are changing, over all its Rollouts, as `--max-changing` of the agent allows",
				Next:    "wait, or raise the flag; `cascade get rollouts -A` shows which Rollouts have them",
			},
			{
				Reasons: []string{"AwaitingApproval", "WaveUnproven"},
				Means:   "the next wave, or the end of the run, waits for a person; with the latter, because less than half of the wave before is known to be ready, or no cluster at all, which no approval stands for",
				Next:    "`cascade approve rollout`",
			},
			{
				Reasons: []string{"NoChildren"},
				Means:   "no cluster that this tier manages is in any of its waves, or no layer brings what is moved into any of them: a revision begins when one is, or does",
			},
			{
				Reasons: []string{"RollingOut"},
				Means:   "a cluster has the revision of the run, and it is not in effect there yet: the message names the object that is waited for",
				Next:    "wait, or look at the object that the message names",
			},
			{
				Reasons: []string{"RolloutHalted"},
				Means:   "more clusters failed than may; `status.failing` names them, with the reason of each",
				Next:    "push a commit that mends it; or `cascade rollout retry`, `abort` or `skip`",
			},
			{
				Reasons: []string{"DeadlineExceeded", "NotReadyBefore"},
				Note:    " (in `status.failing`)",
				Means:   "the cluster was not ready at the revision by `spec.deadline`; with the latter it was not ready before either, so that it counts for nothing",
				Next:    "see why the cluster is not ready: `cascade why child/<name>`",
			},
			{
				Reasons: []string{"UnsupportedVersionStep"},
				Note:    " (in `status.failing`)",
				Means:   "the revision skips a minor version of Kubernetes, or goes back by one, or by a patch where the Cluster has a managed topology; the Cluster was not touched, and no more of a HelmRelease that makes it than its declaration",
				Next:    "push a commit with the version that the message names",
			},
			{
				Reasons: []string{"Reverting", "Reverted", "Aborted"},
				Means:   "clusters get the last good revision back, have it, or keep what they have",
				Next:    "push another commit",
			},
			{
				Reasons: []string{"ParentOlder"},
				Means:   "the layer's agent is of a later version than the agent of this tier, by the tag of its image; no cluster gets it, and a run of an earlier one, or a revert to one, goes on",
				Next:    "upgrade this tier first; until then the clusters keep their agents",
			},
			{
				Reasons: []string{"RolloutConflict"},
				Means:   "another Rollout moves the same for a cluster; nothing is decided",
				Next:    "give them `spec.clusterSelector`s that have none in common",
			},
			{
				Reasons: []string{"SourceNotReady"},
				Means:   "the source was not fetched yet, or the Kustomization was not built, or applies nothing of what clusters may have at the moment, or what a Layer's Rollout brings has to be fetched again: no further cluster begins",
				Next:    "look at that one",
			},
			{
				Reasons: []string{"InvalidSpec"},
				Means:   "the message says what",
				Next:    "correct it",
			},
			{
				Reasons: []string{"Suspended"},
				Means:   "no further cluster begins: the Rollout is suspended, or the Layer that it moves, as the message says",
				Next:    "`cascade rollout resume`, or `cascade resume layer`",
			},
		},
	}
}

func promotion() Section {
	return Section{
		Title: "Rollout, from one environment to the next",
		Kinds: []string{"Rollout"},
		Intro: "What travels between environments has the conditions `Upstream`, `Published` and `ApprovalTags`. Until the first commit was taken, the reason of\n`Upstream` is also that of Ready.",
		Entries: []Entry{
			{
				Reasons: []string{"AwaitingUpstream"},
				Means:   "what was proven last is not old enough, is being fetched, or was not read yet; the message says which",
				Next:    "wait; or a shorter `spec.upstream.minAge`",
			},
			{
				Reasons: []string{"UpstreamMissing"},
				Means:   "the repository has no such reference: nothing was proven yet, or it is published under another name",
				Next:    "compare `spec.upstream.name` with `spec.publish.name` of the other Rollout, and look at its condition `Published`",
			},
			{
				Reasons: []string{"UpstreamUnreadable"},
				Means:   "the repository does not answer, or the commit cannot be fetched",
				Next:    "look at the GitRepository",
			},
			{
				Reasons: []string{"UpstreamUnverified"},
				Means:   "the tag is not signed with a key of `spec.upstream.verify`",
				Next:    "find out who wrote it; sign with `signingKey` in the Secret of `spec.publish`",
			},
			{
				Reasons: []string{"UpstreamInvalid"},
				Means:   "the reference holds something else",
				Next:    "find out who wrote it",
			},
			{
				Reasons: []string{"UpstreamWentBack"},
				Means:   "it holds an older state than one that was taken: somebody put it back, or the other tier was built again with a clock that is behind",
				Next:    "find out who wrote it; the next proof of a later time counts",
			},
			{
				Reasons: []string{"UpstreamNotOnBranch"},
				Means:   "the proven commit is not in the history of what this source follows",
				Next:    "let both follow the same branch",
			},
			{
				Reasons: []string{"PublishFailed"},
				Means:   "the last good commit could not be written down",
				Next:    "the credential of `spec.publish.secretRef` must be allowed to write `refs/cascade/proven/*`",
			},
			{
				Reasons: []string{"PublishConflict"},
				Means:   "another Rollout publishes under the name, or the reference holds something else",
				Next:    "another `spec.publish.name`; or delete the reference",
			},
			{
				Reasons: []string{"TagsUnreadable"},
				Means:   "the tags of the repository could not be read",
				Next:    "look at the GitRepository",
			},
			{
				Reasons: []string{"TagRefused"},
				Means:   "a tag on the commit of the run has the name of an approval, and is not signed with a key of `spec.approvalTags`, or leads there through another tag",
				Next:    "sign it, on the commit itself; or find out who wrote it",
			},
			{
				Reasons: []string{"ProofPublished"},
				Note:    " (an event)",
				Means:   "the last good commit was written down for other environments",
			},
		},
	}
}

func notification() Section {
	const trial = "; a message is tried five times"
	return Section{
		Title: "Provider, Alert",
		Kinds: []string{"Provider", "Alert"},
		Intro: "These kinds have no status: events of theirs tell what is wrong with them, once, and when it is well again. `cascade_notifications_total` counts\nmessages. [notifications.md](notifications.md) is about both.",
		Entries: []Entry{
			{
				Reasons: []string{"UnsupportedProvider"},
				Means:   "the agent does not serve the type of the Provider",
				Next:    "run Flux's notification-controller for it: leave `Alert` and `Provider` out of `--controllers`, and name it in `--events-addr`",
			},
			{
				Reasons: []string{"InvalidProvider"},
				Means:   "the Provider or its Secret lacks something, or has it wrong, as the message says",
				Next:    "correct the Provider, or its Secret",
			},
			{
				Reasons: []string{"AddressRefused"},
				Note:    " (an event)",
				Means:   "the address, or that of `githubAppBaseURL`, is link-local, a metadata service, or in a network of `--deny-provider-addresses`",
				Next:    "name another address",
			},
			{
				Reasons: []string{"RedirectRefused"},
				Note:    " (an event)",
				Means:   "the server sends messages elsewhere; nothing is sent there, since a token is for one address",
				Next:    "name the address where the redirects end",
			},
			{
				Reasons: []string{"CertificateRefused"},
				Means:   "the server does not prove who it is, or does not take the certificate of `spec.certSecretRef`",
				Next:    "name a Secret with the right `ca.crt`, or correct the server's certificate",
			},
			{
				Reasons: []string{"ProviderTimeout"},
				Means:   "the server does not answer within `spec.timeout`" + trial,
				Next:    "see whether it works; or a longer `spec.timeout`, of two minutes at most",
			},
			{
				Reasons: []string{"ProviderUnreachable"},
				Means:   "no connection can be made, or what answers speaks no HTTP" + trial,
				Next:    "check the address, `spec.proxySecretRef`, and what the network of the agent lets pass",
			},
			{
				Reasons: []string{"ProviderFailing"},
				Means:   "the server answers that it fails, or has too much to do" + trial,
				Next:    "look at the server; tell less by `spec.eventSeverity` of Alerts",
			},
			{
				Reasons: []string{"ProviderRefused"},
				Means:   "the server refuses the message; the code of its answer is in the event",
				Next:    "check the token, the address, `spec.channel` and `spec.type`",
			},
			{
				Reasons: []string{"NotificationsDropped"},
				Means:   "more messages wait for the Provider than may; the oldest are dropped",
				Next:    "see why the server is slow, or tell less",
			},
			{
				Reasons: []string{"ProviderRecovered"},
				Means:   "messages arrive again",
				Next:    "nothing",
			},
			{
				Reasons: []string{"ProviderNotFound"},
				Means:   "the Provider that the Alert names does not exist in its namespace",
				Next:    "create it, or correct `spec.providerRef`",
			},
			{
				Reasons: []string{"InvalidAlert"},
				Means:   "an expression of `spec.inclusionList` or `spec.exclusionList` is none, or too large: it includes or excludes nothing",
				Next:    "correct the expression",
			},
			{
				Reasons: []string{"MetadataConflict"},
				Means:   "the Alert, the object and its controller set the same key of metadata: the controller's counts, then the Alert's",
				Next:    "another key in `spec.eventMetadata`, or in the annotation of the object",
			},
		},
	}
}

const intro = "# Reasons, and what to do\n\nThe reason of a condition is stable; alerts may match on it. The message names the\nobject and the cause."

const forPrograms = "Messages are for people, and their words change. What is held until a person decides is data. A Child has it in\n`status.layers[].held`. A Kustomization or HelmRelease has it in the annotation `cascade.dev/held`, JSON with the `apiVersion` that it\nis written in:\n\n| field | is |\n|---|---|\n| `prune.hash` | the hash that `cascade approve prune --hash` takes; absent if there is nothing to approve |\n| `prune.deletes` | how many objects an approval would delete |\n| `prune.protected` | how many objects wait for their confirmation in Git |\n| `prune.holding` | how many Layers are being deleted and hold the removal from their children: `cascade approve removal` |\n| `create.clusters` | the Clusters to decide about, as `namespace/name`, 200 at most |\n| `handOver.hash`, `handOver.since` | which objects are kept for another owner, and since when the last of them is; there with the condition `HandOverPending` |\n| `kept.objects` | objects that go later without a person, with a Cluster that exists or after another one, as `Kind/namespace/name`, 20 at most; there without a condition |\n| `last` | objects that go after a Kustomization or HelmRelease which may need them, and about which nobody is asked again; for agents |\n| `create.elsewhere` | whether the decision is made in the cluster that is applied to, with `cascade approve create --pushed` |\n\nWhere the condition `PruneBlocked` or `CreateHeld` is there and the annotation is not, an older agent wrote the status: take what is\nheld for unknown, not for nothing ([decision 017](decisions/017-typed-holds.md))."

func receiver() Section {
	return Section{
		Title: "Receiver",
		Kinds: []string{"Receiver"},
		Entries: []Entry{
			{
				Reasons: []string{"TokenNotFound"},
				Means:   "the Secret of `spec.secretRef` is not there, or has no `token`; of type gcr, no `email` or `audience`. No webhook is accepted",
				Next:    "make the Secret; with the label `reconcile.fluxcd.io/watch: Enabled` a change of it counts at once",
			},
			{
				Reasons: []string{"ValidationFailed"},
				Means:   "an entry of `spec.resources` cannot be: another API group than the kind has, `*` without matchLabels, or matchLabels without `*`",
				Next:    "correct the entry that the message names",
			},
			{
				Reasons: []string{"InvalidCELExpression"},
				Means:   "a filter, or an expression of a provider, is no CEL, reads what it does not have, or returns no bool",
				Next:    "correct the expression; filters have `req` and `res`, and `claims` with type generic-oidc",
			},
			{
				Reasons: []string{"AccessDenied"},
				Means:   "`spec.resources` names an object of another namespace, and `--no-cross-namespace-refs` is set",
				Next:    "name objects of the Receiver's own namespace",
			},
		},
	}
}

func artifactGenerator() Section {
	return Section{
		Title: "ArtifactGenerator",
		Kinds: []string{"ArtifactGenerator"},
		Entries: []Entry{
			{
				Reasons: []string{"SourceFetchFailed"},
				Means:   "one of its sources is not there, has no artifact yet, or cannot be read; what was made stays",
				Next:    "look at that source, which wakes the generator, or `spec.sources`",
			},
			{
				Reasons: []string{"BuildFailed"},
				Means:   "there is nothing at a path or for a pattern, a file and a directory would have one path, a file cannot be merged or extracted, or a limit was exceeded; the artifact that the message names stays as it was, and the others are made",
				Next:    "correct `copy`, or the files in the source; another revision wakes the generator",
			},
			{
				Reasons: []string{"ValidationFailed"},
				Means:   "the spec is invalid: an alias, a path that leads elsewhere, a pattern, a name, what `pathPattern` captures; or an artifact would be made of itself",
				Next:    "correct the field that the message names, or the names of directories",
			},
			{
				Reasons: []string{"AccessDenied"},
				Means:   "a source is in another namespace, which a flag forbids",
				Next:    "move one of them",
			},
			{
				Reasons: []string{"RevisionNotFetched"},
				Note:    " (condition `FetchFailed` of one that is disabled, and an event)",
				Means:   "the agent began anew, and what the generator made cannot be made again: its sources have something else, or are not there, or its spec is another. Who refers to the artifacts that the message names stands still",
				Next:    "enable the generator, which makes what its sources have now; or revert what changed",
			},
			{
				Reasons: []string{"NameTaken"},
				Means:   "there is an ExternalArtifact of that name which this generator did not make; it is neither written nor deleted",
				Next:    "delete it, or name the artifact otherwise",
			},
			{
				Reasons: []string{"ReconciliationFailed"},
				Means:   "an ExternalArtifact could not be written, or not be packed; it is tried again",
				Next:    "look at the disk of `--storage-path`, and at what the API server says",
			},
			{
				Reasons: []string{"GarbageCollectionSucceeded"},
				Note:    " (an event)",
				Means:   "an artifact that is declared no more was deleted",
				Next:    "nothing",
			},
		},
	}
}

func stateBackup() Section {
	return Section{
		Title: "StateBackup",
		Kinds: []string{"StateBackup"},
		Intro: "[state.md](state.md) has the whole.",
		Entries: []Entry{
			{
				Reasons: []string{"Succeeded"},
				Means:   "the newest version is the present state",
				Next:    "nothing",
			},
			{
				Reasons: []string{"AuthenticationFailed", "CredentialRefused"},
				Means:   "the destination refuses the login, or what the Secret has may not go there",
				Next:    "look at the Secret of `spec.destination.secretRef`; without one, at what the agent's identity may do there",
			},
			{
				Reasons: []string{"CredentialMissing"},
				Means:   "a Secret of `spec.destination` does not exist",
				Next:    "create it",
			},
			{
				Reasons: []string{"LimitExceeded"},
				Means:   "what the destination has is larger than is read",
				Next:    "use a bucket or repository that has nothing else",
			},
			{
				Reasons: []string{"BackupRefused"},
				Means:   "it is in another namespace than the agent; nothing is saved, as that has the Secrets of all namespaces",
				Next:    "move it to the namespace of the agent",
			},
			{
				Reasons: []string{"InvalidSpec"},
				Means:   "the schedule, the destination or a recipient is not one",
				Next:    "correct the field that the message names",
			},
			{
				Reasons: []string{"StateUnreadable"},
				Means:   "objects of Cluster API or records of the tier could not be read, all at one version",
				Next:    "look at the API server, and at the agent's rights",
			},
			{
				Reasons: []string{"RestorePending"},
				Means:   "a Cluster is being restored, so that the tier has not all of its state yet; or the destination has versions that this StateBackup did not save, the first sync of the tier is not over, and no Cluster of the tier runs: a version above them would be that of an empty tier; nothing is saved or deleted",
				Next:    "where a restore was ended: the same `cascade restore` again, or, if its version is gone, take `spec.paused` and the annotation `cascade.dev/restoring` off the Cluster once that is whole; if the tier that saved them is gone, and this one takes its place: `cascade restore`, to its end; if they are another tier's, which may run: a destination of its own; if nothing is to be restored, or all is: `cascade approve first-sync`",
			},
			{
				Reasons: []string{"EncryptionFailed"},
				Means:   "a key service did not wrap the key of the version, or recipients do not go together; nothing was saved",
				Next:    "look at the key service, and at what the agent's identity may do there",
			},
			{
				Reasons: []string{"DestinationFailed"},
				Means:   "the bucket or repository does not answer, has another content, or does not hold writes to conditions",
				Next:    "look at `spec.destination`, and at the server",
			},
			{
				Reasons: []string{"StateLocked"},
				Means:   "another process saves there: a second agent, `cascade save`, or a management cluster for an hour",
				Next:    "wait until the time that the message names; give each tier a destination of its own",
			},
			{
				Reasons: []string{"BackupStale"},
				Means:   "backups fail, and the last success is older than `spec.staleAfter`; the message has the reason of the last failure",
				Next:    "what that reason says; save by hand meanwhile: `cascade save`",
			},
		},
	}
}
