"""Kafka's own tests of producer ids, epochs and expiry, by class: for each there is one here that asks the same.

Ours has the same name in our spelling, in one of the files beside its class. What has none is in ``NOT_HERE``, and
in the text with the reason. From the test sources of 3.9 and 4.0; those of older releases are named with theirs.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class OwnTests(NamedTuple):
    """Of one class of Kafka's."""

    files: tuple[str, ...]
    """Where ours are."""
    names: str


NOT_HERE: Final = frozenset({
    "testIdempotentInitProducerIdWithMaxInFlightOne", "testInitProducerIdWithMaxInFlightOne",
    "testRetryInitTransactionsAfterTimeout",
})  # fmt: skip

OWN_TESTS: Final = {
    "ProducerIdControlManagerTest": OwnTests(
        ("tests/tiering/controller/producer_ids/test_allocation.py",),
        """
        testInitialResult testMonotonic testUnknownBrokerOrEpoch testMaxValue testGenerateProducerIds
        testSnapshotIterator
        """,
    ),
    "ProducerIdManagerTest": OwnTests(
        (
            "tests/tiering/controller/producer_ids/test_broker_ids.py",
            "tests/tiering/controller/producer_ids/test_zookeeper_blocks.py",
        ),
        """
        testGetProducerIdZk testExceedProducerIdLimitZk testConcurrentGeneratePidRequests
        testUnrecoverableErrors testInvalidRanges testRetryBackoff testContiguousIds
        testRPCProducerIdManagerThrowsConcurrentTransactions
        """,
    ),
    "ProducerIdsBlockTest": OwnTests(
        ("tests/tiering/controller/producer_ids/test_allocation.py",),
        """
        testEmptyBlock testDynamicBlock testClaimNextId
        """,
    ),
    "AllocateProducerIdsRequestTest": OwnTests(
        ("tests/tiering/controller/producer_ids/test_allocation.py",),
        """
        testAllocateProducersIdSentToController testAllocateProducersIdSentToNonController
        """,
    ),
    "ControllerApisTest": OwnTests(
        ("tests/tiering/controller/producer_ids/test_allocation.py",),
        """
        testUnauthorizedHandleAllocateProducerIds testAllocateProducerIdsReturnsNotController
        """,
    ),
    "ProducerIdsIntegrationTest": OwnTests(
        ("tests/tiering/controller/producer_ids/test_durable_allocation.py",),
        """
        testUniqueProducerIds
        """,
    ),
    "ProducerIdsImageTest": OwnTests(
        ("tests/tiering/controller/metadata/test_folding.py",),
        """
        testEmptyImageRoundTrip testImage1RoundTrip testApplyDelta1 testImage2RoundTrip
        """,
    ),
    "ZkMigrationClientTest": OwnTests(
        ("tests/tiering/controller/producer_ids/test_zookeeper_blocks.py",),
        """
        testReadMigrateAndWriteProducerId
        """,
    ),
    "ProducerIdExpirationTest": OwnTests(
        (
            "tests/replay/test_simulated_partition.py",
            "tests/tiering/controller/test_expiration.py",
            "tests/tiering/controller/transactions/test_coordinator.py",
        ),
        """
        testProducerIdExpirationWithNoTransactions
        testTransactionAfterTransactionIdExpiresButProducerIdRemains testDynamicProducerIdExpirationMs
        """,
    ),
    "TransactionsExpirationTest": OwnTests(
        (
            "tests/replay/test_simulated_partition.py",
            "tests/tiering/controller/transactions/test_coordinator.py",
        ),
        """
        testBumpTransactionalEpochAfterInvalidProducerIdMapping testTransactionAfterProducerIdExpires
        """,
    ),
    "ProducerStateManagerTest": OwnTests(
        ("tests/replay/test_producer_state_manager.py",),
        """
        testBasicIdMapping testAppendTxnMarkerWithNoProducerState testProducerSequenceWrapAround
        testProducerSequenceWithWrapAroundBatchRecord testProducerSequenceInvalidWrapAround
        testNoValidationOnFirstEntryWhenLoadingLog testControlRecordBumpsProducerEpoch
        testTxnFirstOffsetMetadataCached testHasLateTransaction testHasLateTransactionInitializedAfterReload
        testHasLateTransactionUpdatedAfterPartialTruncation testHasLateTransactionUpdatedAfterFullTruncation
        testPrepareUpdateDoesNotMutate updateProducerTransactionState
        testOutOfSequenceAfterControlRecordEpochBump testNonTransactionalAppendWithOngoingTransaction
        testTruncateAndReloadRemovesOutOfRangeSnapshots testTakeSnapshot testFetchSnapshotEmptySnapShot
        testRecoverFromSnapshotUnfinishedTransaction testRecoverFromSnapshotFinishedTransaction
        testRecoverFromSnapshotEmptyTransaction testProducerStateAfterFencingAbortMarker
        testRemoveExpiredPidsOnReload testAcceptAppendWithoutProducerStateOnReplica
        testAcceptAppendWithSequenceGapsOnReplica testDeleteSnapshotsBefore testTruncateFullyAndStartAt
        testReloadSnapshots testFirstUnstableOffsetAfterTruncation
        testLoadFromSnapshotRetainsNonExpiredProducers testSkipSnapshotIfOffsetUnchanged
        testPidExpirationTimeout testFirstUnstableOffset testProducersWithOngoingTransactionsDontExpire
        testSequenceNotValidatedForGroupMetadataTopic testOldEpochForControlRecord testCoordinatorFencing
        testCoordinatorFencedAfterReload testLoadFromEmptySnapshotFile testLoadFromTruncatedSnapshotFile
        testLoadFromCorruptSnapshotFile testAppendEmptyControlBatch
        testRemoveStraySnapshotsKeepCleanShutdownSnapshot testRemoveAllStraySnapshots
        testRemoveAndMarkSnapshotForDeletion testRemoveAndMarkSnapshotForDeletionAlreadyDeleted
        testEntryForVerification testSequenceAndEpochInVerificationEntry
        testThrowOutOfOrderSequenceWithVerificationSequenceCheck testVerificationStateEntryExpiration
        testLastStableOffsetCompletedTxn testSkipEmptyTransactions testReadWriteSnapshot
        """,
    ),
    "UnifiedLogTest": OwnTests(
        (
            "tests/replay/test_simulated_partition.py",
            "tests/replay/test_producer_state_manager.py",
        ),
        """
        testDuplicateAppends testDuplicateAppendToFollower testMultipleProducersWithDuplicatesInSingleAppend
        testMultipleProducerIdsPerMemoryRecord testOldProducerEpoch
        testAllowNonZeroSequenceOnFirstAppendNonZeroEpoch testPeriodicProducerIdExpiration
        testProducerExpireCheckAfterDelete testProducerIdExpirationOnSegmentDeletion
        testDeleteSnapshotsOnIncrementLogStartOffset testProducerIdMapOffsetUpdatedForNonIdempotentData
        testProducerSnapshotAfterSegmentRollOnAppend testInitializationOfProducerSnapshotsUpgradePath
        testRetentionDeletesProducerStateSnapshots testLogStartOffsetMovementDeletesSnapshots
        testCompactionDeletesProducerStateSnapshots
        testLoadingLogDeletesProducerStateSnapshotsPastLogEndOffset testProducerIdMapTruncateTo
        testProducerIdMapTruncateToWithNoSnapshots testProducerIdMapTruncateFullyAndStartAt
        testRebuildProducerIdMapWithCompactedData testRebuildProducerStateWithEmptyCompactedBatch
        testUpdateProducerIdMapWithCompactedData
        """,
    ),
    "TransactionCoordinatorTest": OwnTests(
        ("tests/tiering/controller/transactions/test_coordinator.py",),
        """
        shouldReturnInvalidRequestWhenTransactionalIdIsEmpty
        shouldAcceptInitPidAndReturnNextPidWhenTransactionalIdIsNull
        shouldInitPidWithEpochZeroForNewTransactionalId
        shouldGenerateNewProducerIdIfNoStateAndProducerIdAndEpochProvided
        shouldGenerateNewProducerIdIfEpochsExhausted
        shouldRespondWithNotCoordinatorOnInitPidWhenNotCoordinator
        shouldRespondWithCoordinatorLoadInProgressOnInitPidWhenCoordinatorLoading
        shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingEmptyTransaction
        shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteTransaction
        shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteCommitTransaction
        shouldWaitForCommitToCompleteOnHandleInitPidAndExistingTransactionInPrepareCommitState
        shouldWaitForCommitToCompleteOnHandleInitPidAndExistingTransactionInPrepareAbortState
        shouldAbortTransactionOnHandleInitPidWhenExistingTransactionInOngoingState
        shouldFailToAbortTransactionOnHandleInitPidWhenProducerEpochIsSmaller
        shouldNotRepeatedlyBumpEpochDueToInitPidDuringOngoingTxnIfAppendToLogFails
        shouldUseLastEpochToFenceWhenEpochsAreExhausted testInitProducerIdWithNoLastProducerData
        testFenceProducerWhenMappingExistsWithDifferentProducerId testInitProducerIdWithCurrentEpochProvided
        testInitProducerIdStaleCurrentEpochProvided testRetryInitProducerIdAfterProducerIdRotation
        testInitProducerIdWithInvalidEpochAfterProducerIdRotation
        shouldAbortExpiredTransactionsInOngoingStateAndBumpEpoch
        shouldNotAcceptSmallerEpochDuringTransactionExpiration
        shouldNotAbortExpiredTransactionsThatHaveAPendingStateTransition
        shouldNotBumpEpochWhenAbortingExpiredTransactionIfAppendToLogFails
        shouldNotBumpEpochWithPendingTransaction shouldReturnInvalidEpochOnEndTxnWhenEpochIsLarger
        shouldReturnInvalidEpochOnEndTxnWhenEpochIsSmaller
        shouldReplyWithProducerFencedOnEndTxnWhenEpochIsNotSameAsTransaction
        shouldReplyWithInvalidPidMappingOnEndTxnWhenTxnIdDoesntExist
        shouldReplyWithInvalidPidMappingOnEndTxnWhenPidDosentMatchMapped
        shouldRespondWithProducerFencedOnAddPartitionsWhenEpochsAreDifferent
        shouldReturnWhenTransactionVersionDowngraded shouldReturnCorrectlyWhenTransactionVersionUpgraded
        shouldReturnInvalidTxnRequestOnEndTxnV2IfNotEndTxnV2Retry
        shouldReturnOkOnEndTxnV2IfEndTxnV2RetryEpochOverflow
        """,
    ),
    "KafkaApisTest": OwnTests(
        (
            "tests/tiering/controller/producer_ids/test_requests.py",
            "tests/tiering/controller/transactions/test_coordinator.py",
            "tests/replay/test_producer_state_manager.py",
        ),
        """
        shouldReplaceProducerFencedWithInvalidProducerEpochInInitProducerIdWithOlderClient
        shouldReplaceProducerFencedWithInvalidProducerEpochInProduceResponse
        rejectInitProducerIdWhenIdButNotEpochProvided rejectInitProducerIdWhenEpochButNotIdProvided
        """,
    ),
    "TransactionMetadataTest": OwnTests(
        ("tests/tiering/controller/transactions/test_metadata.py",),
        """
        testInitializeEpoch testNormalEpochBump testBumpEpochNotAllowedIfEpochsExhausted
        testTolerateUpdateTimeShiftDuringEpochBump testTolerateUpdateTimeResetDuringProducerIdRotation
        testTolerateTimeShiftDuringAddPartitions testTolerateTimeShiftDuringPrepareCommit
        testTolerateTimeShiftDuringPrepareAbort testTolerateTimeShiftDuringCompleteCommit
        testTolerateTimeShiftDuringCompleteAbort testFenceProducerAfterEpochsExhausted
        testFenceProducerNotAllowedIfItWouldOverflow testRotateProducerId testRotateProducerIdInOngoingState
        testRotateProducerIdInPrepareAbortState testRotateProducerIdInPrepareCommitState
        testAttemptedEpochBumpWithNewlyCreatedMetadata testEpochBumpWithCurrentEpochProvided
        testAttemptedEpochBumpWithLastEpoch testAttemptedEpochBumpWithFencedEpoch testEpochBumpOnEndTxn
        testEpochBumpOnEndTxnOverflow testTransactionStateIdAndNameMapping testAllTransactionStatesAreMapped
        """,
    ),
    "TransactionManagerTest": OwnTests(
        (
            "tests/tiering/controller/transactions/test_client_errors.py",
            "tests/tiering/controller/transactions/test_client_sequences.py",
        ),
        """
        testDefaultSequenceNumber testSequenceNumberOverflow
        testBumpEpochAndResetSequenceNumbersAfterUnknownProducerId testBatchFailureAfterProducerReset
        testBatchCompletedAfterProducerReset testDuplicateSequenceAfterProducerReset testProducerIdReset
        testBumpEpochAfterTimeoutWithoutPendingInflightRequests
        testNoProducerIdResetAfterLastInFlightBatchSucceeds testEpochBumpAfterLastInflightBatchFails
        testNoFailedBatchHandlingWhenTxnManagerIsInFatalError testHealthyPartitionRetriesDuringEpochBump
        testFailedInflightBatchAfterEpochBump testAbortTransactionAndReuseSequenceNumberOnError
        testAbortTransactionAndResetSequenceNumberOnUnknownProducerId
        testBumpTransactionalEpochOnAbortableError testBumpTransactionalEpochOnUnknownProducerIdError
        testBumpTransactionalEpochOnTimeout testBumpTransactionalEpochOnRecoverableAddPartitionRequestError
        testBumpTransactionalEpochOnRecoverableAddOffsetsRequestError
        testCanBumpEpochDuringCoordinatorDisconnect testTransitionToFatalErrorWhenRetriedBatchIsExpired
        testTransitionToAbortableErrorOnBatchExpiry testTransitionToAbortableErrorOnMultipleBatchExpiry
        testDropCommitOnBatchExpiry testDisallowCommitOnProduceFailure testAllowAbortOnProduceFailure
        testAbortableErrorWhileAbortInProgress testProducerFencedExceptionInInitProducerId
        testInvalidProducerEpochConvertToProducerFencedInInitProducerId testProducerFencedInAddPartitionToTxn
        testInvalidProducerEpochConvertToProducerFencedInAddPartitionToTxn testProducerFencedInAddOffSetsToTxn
        testInvalidProducerEpochConvertToProducerFencedInAddOffSetsToTxn
        testInvalidProducerEpochConvertToProducerFencedInEndTxn
        testHandlingOfProducerFencedErrorOnTxnOffsetCommit
        testHandlingOfInvalidProducerEpochErrorOnTxnOffsetCommit testInvalidProducerEpochFromProduce
        testRetriableErrors testCoordinatorNotAvailable
        testTransactionalIdAuthorizationFailureInInitProducerId
        testTransactionAbortableExceptionInInitProducerId testUnsupportedInitTransactions
        testRetryInitTransactionsAfterTimeout
        """,
    ),
    "SenderTest": OwnTests(
        (
            "tests/tiering/controller/transactions/test_client_errors.py",
            "tests/tiering/controller/transactions/test_client_sequences.py",
        ),
        """
        testInitProducerIdRequest testInitProducerIdWithMaxInFlightOne
        testIdempotentInitProducerIdWithMaxInFlightOne testNodeNotReady
        testClusterAuthorizationExceptionInInitProducerIdRequest
        testClusterAuthorizationExceptionInProduceRequest testUnsupportedVersionInProduceRequest
        testIdempotenceWithMultipleInflights testIdempotenceWithMultipleInflightsRetriedInOrder
        testIdempotenceWithMultipleInflightsWhereFirstFailsFatallyAndSequenceOfFutureBatchesIsAdjusted
        testEpochBumpOnOutOfOrderSequenceForNextBatch
        testEpochBumpOnOutOfOrderSequenceForNextBatchWhenThereIsNoBatchInFlight
        testEpochBumpOnOutOfOrderSequenceForNextBatchWhenBatchInFlightFails
        testCorrectHandlingOfOutOfOrderResponses testCorrectHandlingOfOutOfOrderResponsesWhenSecondSucceeds
        testExpiryOfUnsentBatchesShouldNotCauseUnresolvedSequences
        testExpiryOfFirstBatchShouldNotCauseUnresolvedSequencesIfFutureBatchesSucceed
        testExpiryOfFirstBatchShouldCauseEpochBumpIfFutureBatchesFail testUnresolvedSequencesAreNotFatal
        testExpiryOfAllSentBatchesShouldCauseUnresolvedSequences
        testResetOfProducerStateShouldAllowQueuedBatchesToDrain testCloseWithProducerIdReset
        testForceCloseWithProducerIdReset testRetryWhenProducerIdChanges
        testBatchesDrainedWithOldProducerIdShouldSucceedOnSubsequentRetry
        testCorrectHandlingOfDuplicateSequenceError
        testTransactionalUnknownProducerHandlingWhenRetentionLimitReached
        testIdempotentUnknownProducerHandlingWhenRetentionLimitReached
        testUnknownProducerErrorShouldBeRetriedWhenLogStartOffsetIsUnknown
        testUnknownProducerErrorShouldBeRetriedForFutureBatchesWhenFirstFails
        testShouldRaiseOutOfOrderSequenceExceptionToUserIfLogWasNotTruncated testSequenceNumberIncrement
        testBumpEpochWhenOutOfOrderSequenceReceived testReceiveFailedBatchTwiceWithTransactions
        testInvalidTxnStateIsAnAbortableError testTransactionAbortableExceptionIsAnAbortableError
        testIdempotentSplitBatchAndSend testTransactionalSplitBatchAndSend
        """,
    ),
}
